"""JSON as section 3 of protocol/RLX.md has it: what is refused, with which code, what is ignored, what that costs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from relaax.rlx import Error, ErrorCode, Message, Metrics, Ping, ProtocolError, Sender, Step
from relaax.rlx.wire.codecs import codec_named
from support.rlx_messages import assert_same
from support.rlx_pair import make_hello

ARRAY = '{"dtype":"DTYPE_UINT8","shape":[1],"data":"%s"}'


def read(text: str, sender: Sender = Sender.CLIENT) -> Message:
    return codec_named("json").decode(text.encode(), sender)


def code_of(text: str, sender: Sender = Sender.CLIENT) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        read(text, sender)
    assert len(caught.value.message) < 400
    return caught.value.code


def put(text: str, *parts: str) -> str:
    """The text with a part in the place of each %s."""
    for part in parts:
        text = text.replace("%s", part, 1)
    return text


def reward(number: str) -> str:
    return put('{"step":{"reward":[%s],"observation":[]}}', number)


def data(text: str) -> str:
    return put('{"step":{"reward":[1],"observation":[%s]}}', put(ARRAY, text))


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "3", '"ping"', "null", "true"),
        *('{"ping":[]}', '{"ping":0}', '{"ping":""}', '{"ping":false}', '{"hello":[]}', '{"step":[[]]}'),
        *('{"ping":{},"bye":{}}', '{"ping":{},"ping":{}}', '{"metrics":{"scalars":[[]]}}'),
        '{"hello":{"protocolVersion":1,"protocol_version":1}}',
        '{"hello":{"protocolVersion":1,"sessionId":"a","session_id":"a"}}',
        '{"hello":{"protocolVersion":1,"sessionId":"a","session_id":null}}',
        '{"step":{"final_observation":[],"finalObservation":[]}}',
        '{"hello":{"protocolVersion":1,"actionSpace":{"discrete":{"n":3},"multiBinary":{"shape":[1]}}}}',
        '{"x":NaN}',
        '{"ping":{"x":Infinity}}',
        '{"ping":{"x":[-Infinity]}}',
        *map(reward, ("true", '"1_0"', '" 1"', '"1 "', '"1e5 "', '"٣"', '"nan"', '"inf"', '"infinity"', '"+1"', '""')),
        *map(reward, ('"0x1"', '".5"', '"1."', '"01"', "1e400", '"1e400"', "9" * 400, put('"%s"', "9" * 400), "null")),
        *map(reward, ("[1]", '["1"]', "{}", "NaN")),
        *(
            put('{"ping":{"nonce":%s}}', number)
            for number in ("true", '"1_0"', '" 1"', '"٣"', "1.5", '"1.5"', '"1e-1"')
        ),
        *(
            put('{"ping":{"nonce":%s}}', number)
            for number in ("4294967296", "-1", "9" * 5000, put('"%s"', "9" * 5000), '""')
        ),
        *(put('{"step":{"terminated":[%s]}}', flag) for flag in ("1", '"true"', "null")),
        *map(data, ("A", "AA", "AA=", "AA===", "AAA", "AA==AA==", "AB==", " AA==", "AA==\\n", "A A=", "-_==", "é===")),
        '{"bye":{"reason":7}}',
        '{"bye":{"reason":"\\ud800"}}',
    ],
)
def test_what_python_or_protobuf_would_take_is_malformed(text: str) -> None:
    assert code_of(text) is ErrorCode.MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        '{"ping":{"nonce":7,"[x.y]":1}}',
        put('{"ping":{"nonce":7,"x":%s}}', "9" * 5000),
        put('{"ping":{"nonce":7,"x":-%s}}', "9" * 5000),
        '{"ping":{"nonce":7,"x":1e999,"y":"\\ud800"}}',
        '{"[x.y]":{},"ping":{"nonce":7},"extra":[null,{"a":[1.5,true]}]}',
        *(put('{"ping":{"nonce":%s},"bye":null}', seven) for seven in ("7.0", '"7"', '"7.0"', '"70e-1"', "0.7e1")),
    ],
)
def test_what_is_not_known_is_ignored_and_a_number_may_be_written_in_several_ways(text: str) -> None:
    assert read(text) == Ping(7)


def test_numbers_that_a_step_may_say() -> None:
    message = read(reward('1,"2.5","-1e2",-0.5,12345678901234567890,"Infinity","-Infinity","NaN"'))
    assert_same(message, Step(np.array([1, 2.5, -100, -0.5, 12345678901234567890, math.inf, -math.inf, math.nan]), []))


def test_enumerators() -> None:
    assert code_of('{"step":{"observation":[{"dtype":"DTYPE_NEW"}]}}') is ErrorCode.INVALID_VALUE
    assert code_of('{"step":{"observation":[{"dtype":"9"}]}}') is ErrorCode.INVALID_VALUE
    assert code_of('{"step":{"observation":[{"dtype":true}]}}') is ErrorCode.MALFORMED
    unknown = read('{"error":{"code":"ERROR_CODE_NEW","message":"new"}}', Sender.SERVER)
    assert unknown == Error(ErrorCode.UNKNOWN, "new", False)


@pytest.mark.parametrize("version", ["2", '"2"', "2.0", "0", "null"])
@pytest.mark.parametrize(
    "rest",
    [
        '"mode":"MODE_NEW"',
        '"autoreset":["AUTORESET_NEW"]',
        '"autoreset":{"every":"AUTORESET_NEW"}',
        '"observationSpace":{"graph":{}}',
        '"observationSpace":"Box"',
        '"observationSpace":{"box":{"dtype":"DTYPE_COMPLEX64"}}',
        '"environments":{"count":3}',
        '"token":7,"clientName":[]',
        '"sessionId":"a","session_id":"b"',
    ],
)
def test_the_version_is_looked_at_before_all_else(version: str, rest: str) -> None:
    assert code_of(put('{"hello":{%s,"protocolVersion":%s}}', rest, version)) is ErrorCode.UNSUPPORTED_VERSION
    assert code_of(put('{"hello":{"protocol_version":%s,%s}}', version, rest)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_hello_may_leave_out_its_version_but_not_say_it_twice() -> None:
    assert code_of('{"hello":{"mode":"MODE_NEW"}}') is ErrorCode.UNSUPPORTED_VERSION
    assert code_of('{"hello":{"protocolVersion":2,"protocol_version":2}}') is ErrorCode.MALFORMED
    assert code_of('{"hello":{"protocolVersion":"two"}}') is ErrorCode.MALFORMED
    said = json.loads(codec_named("json").encode(make_hello(), Sender.CLIENT))
    said["hello"]["mode"] = "MODE_NEW"
    assert code_of(json.dumps(said)) is ErrorCode.INVALID_VALUE


def many(begin: str, element: str, end: str, size: int = 2**20) -> str:
    count = (size - len(begin) - len(end)) // (len(element) + 1)
    return begin + ",".join([element] * count) + end


def seconds(work: Callable[[], object]) -> float:
    """Of processor time, at best."""
    times = []
    for _ in range(3):
        began = time.process_time()
        try:
            work()
        except ProtocolError as error:
            assert error.code in (ErrorCode.INVALID_VALUE, ErrorCode.MALFORMED)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize(
    "text",
    [
        many('{"metrics":{"scalars":[', "{}", "]}}"),
        many('{"step":{"reward":[1],"observation":[', "{}", "]}}"),
        many('{"step":{"terminated":[', "true", ",1]}}"),
        many('{"step":{"episodes":[', "{}", "]}}"),
    ],
    ids=["scalars", "observation", "terminated", "episodes"],
)
def test_to_refuse_a_frame_costs_little_more_than_to_parse_it(text: str) -> None:
    """A megabyte took a second, 50 to 100 times what Python's parser takes; now 4 to 8 times."""
    assert seconds(lambda: read(text)) < 20 * seconds(lambda: json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        many('{"metrics":{"scalars":[', "{}", "]}}", 10_000),
        '{"metrics":{"scalars":[{"name":"a"},{"name":""}]}}',
        many('{"step":{"observation":[', put(ARRAY, "AA=="), "]}}", 20_000),
        many('{"step":{"episodes":[', '{"length":1}', "]}}", 900_000),
    ],
)
def test_lists_that_no_conversation_can_need_are_invalid(text: str) -> None:
    assert code_of(text) is ErrorCode.INVALID_VALUE


def test_a_scalar_may_come_twice() -> None:
    assert read('{"metrics":{"scalars":[{"name":"a"},{"name":"a","value":2}]}}') == Metrics((("a", 0.0), ("a", 2.0)))
