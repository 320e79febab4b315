"""The JSON codec of protocol/RLX.md, section 3: refused and ignored input, error codes, and the time to refuse."""

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


def fill(text: str, *parts: str) -> str:
    """Return the text with each %s replaced by the next part."""
    for part in parts:
        text = text.replace("%s", part, 1)
    return text


def reward(number: str) -> str:
    return fill('{"step":{"reward":[%s],"observation":[]}}', number)


def data(text: str) -> str:
    return fill('{"step":{"reward":[1],"observation":[%s]}}', fill(ARRAY, text))


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
        *map(reward, ('"0x1"', '".5"', '"1."', '"01"', "1e400", '"1e400"', "9" * 400, fill('"%s"', "9" * 400), "null")),
        *map(reward, ("[1]", '["1"]', "{}", "NaN")),
        *(
            fill('{"ping":{"nonce":%s}}', number)
            for number in ("true", '"1_0"', '" 1"', '"٣"', "1.5", '"1.5"', '"1e-1"')
        ),
        *(
            fill('{"ping":{"nonce":%s}}', number)
            for number in ("4294967296", "-1", "9" * 5000, fill('"%s"', "9" * 5000), '""')
        ),
        *(fill('{"step":{"terminated":[%s]}}', flag) for flag in ("1", '"true"', "null")),
        *map(data, ("A", "AA", "AA=", "AA===", "AAA", "AA==AA==", "AB==", " AA==", "AA==\\n", "A A=", "-_==", "é===")),
        '{"bye":{"reason":7}}',
        '{"bye":{"reason":"\\ud800"}}',
    ],
)
def test_values_that_python_or_protobuf_accept_are_malformed(text: str) -> None:
    assert code_of(text) is ErrorCode.MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        '{"ping":{"nonce":7,"[x.y]":1}}',
        fill('{"ping":{"nonce":7,"x":%s}}', "9" * 5000),
        fill('{"ping":{"nonce":7,"x":-%s}}', "9" * 5000),
        '{"ping":{"nonce":7,"x":1e999,"y":"\\ud800"}}',
        '{"[x.y]":{},"ping":{"nonce":7},"extra":[null,{"a":[1.5,true]}]}',
        *(fill('{"ping":{"nonce":%s},"bye":null}', seven) for seven in ("7.0", '"7"', '"7.0"', '"70e-1"', "0.7e1")),
    ],
)
def test_unknown_fields_and_other_number_forms_are_accepted(text: str) -> None:
    assert read(text) == Ping(7)


def test_reward_number_forms_are_read() -> None:
    message = read(reward('1,"2.5","-1e2",-0.5,12345678901234567890,"Infinity","-Infinity","NaN"'))
    assert_same(message, Step(np.array([1, 2.5, -100, -0.5, 12345678901234567890, math.inf, -math.inf, math.nan]), []))


def test_unknown_enumerator_is_refused_except_error_code() -> None:
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
def test_version_is_checked_before_other_fields(version: str, rest: str) -> None:
    assert code_of(fill('{"hello":{%s,"protocolVersion":%s}}', rest, version)) is ErrorCode.UNSUPPORTED_VERSION
    assert code_of(fill('{"hello":{"protocol_version":%s,%s}}', version, rest)) is ErrorCode.UNSUPPORTED_VERSION


def test_missing_version_is_unsupported_and_repeated_malformed() -> None:
    assert code_of('{"hello":{"mode":"MODE_NEW"}}') is ErrorCode.UNSUPPORTED_VERSION
    assert code_of('{"hello":{"protocolVersion":2,"protocol_version":2}}') is ErrorCode.MALFORMED
    assert code_of('{"hello":{"protocolVersion":"two"}}') is ErrorCode.MALFORMED
    tree = json.loads(codec_named("json").encode(make_hello(), Sender.CLIENT))
    tree["hello"]["mode"] = "MODE_NEW"
    assert code_of(json.dumps(tree)) is ErrorCode.INVALID_VALUE


def long_list(begin: str, element: str, end: str, size: int = 2**20) -> str:
    count = (size - len(begin) - len(end)) // (len(element) + 1)
    return begin + ",".join([element] * count) + end


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of three calls."""
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
        long_list('{"metrics":{"scalars":[', "{}", "]}}"),
        long_list('{"step":{"reward":[1],"observation":[', "{}", "]}}"),
        long_list('{"step":{"terminated":[', "true", ",1]}}"),
        long_list('{"step":{"episodes":[', "{}", "]}}"),
    ],
    ids=["scalars", "observation", "terminated", "episodes"],
)
def test_time_to_refuse_is_at_most_20_times_that_to_parse(text: str) -> None:
    """Refusing a megabyte takes 4 to 8 times as long as parsing it with Python's parser."""
    assert processor_seconds(lambda: read(text)) < 20 * processor_seconds(lambda: json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        long_list('{"metrics":{"scalars":[', "{}", "]}}", 10_000),
        '{"metrics":{"scalars":[{"name":"a"},{"name":""}]}}',
        long_list('{"step":{"observation":[', fill(ARRAY, "AA=="), "]}}", 20_000),
        long_list('{"step":{"episodes":[', '{"length":1}', "]}}", 900_000),
    ],
)
def test_list_above_every_limit_is_invalid(text: str) -> None:
    assert code_of(text) is ErrorCode.INVALID_VALUE


def test_repeated_scalar_is_accepted() -> None:
    assert read('{"metrics":{"scalars":[{"name":"a"},{"name":"a","value":2}]}}') == Metrics((("a", 0.0), ("a", 2.0)))
