//! Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and changed
//! answers.

use rlx::{bytes, values, Autoreset, Client, Config, Dtype, Episode, Error, Leaves, Outcome, Space};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread::{sleep, spawn, JoinHandle};
use std::time::{Duration, Instant};

const WELCOME: &str =
    "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
const ACTIONS: &str = "0000001312110a0f08091201011a080200000000000000";

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Read frames up to one that needs an answer.
fn asked(stream: &mut TcpStream, told: &mut Vec<u8>) -> bool {
    loop {
        let mut head = [0; 4];
        if stream.read_exact(&mut head).is_err() {
            return false;
        }
        let mut payload = vec![0; u32::from_be_bytes(head) as usize];
        stream.read_exact(&mut payload).unwrap();
        told.extend(head);
        told.extend(&payload);
        if payload[0] >> 3 <= 4 || payload[0] >> 3 == 6 {
            return true;
        }
    }
}

/// A server that answers each request with the next frame of a script, one script for each connection, then
/// disconnects. To close with a request unread resets the connection: an empty frame reads one without an answer. Its result is what it received.
fn serve(scripts: Vec<Vec<Vec<u8>>>) -> (String, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = spawn(move || {
        let mut told = vec![];
        for script in scripts {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in script {
                if !asked(&mut stream, &mut told) {
                    break;
                }
                let _ = stream.write_all(&answer);
            }
        }
        told
    });
    (address, thread)
}

fn point(address: &str) -> Config {
    let mut config = Config::new(address, Space::unbounded(Dtype::Float32, &[2]), Space::discrete(3));
    (config.environment, config.retry) = ("Point-v0".into(), Duration::ZERO);
    config
}

fn seen(x: f32, y: f32) -> Leaves {
    vec![bytes(&[x, y])]
}

fn step(reward: f64, observation: Leaves) -> Outcome {
    Outcome { reward: vec![reward], observation, ..Outcome::default() }
}

fn contains(told: &[u8], digits: &str) -> usize {
    let part = unhex(digits);
    told.windows(part.len()).filter(|window| *window == part).count()
}

#[test]
fn example_bytes_of_specification() {
    let (address, server) = serve(vec![vec![unhex(WELCOME), unhex(ACTIONS), unhex(ACTIONS)]]);
    let mut client = Client::new(point(&address)).unwrap();
    let actions = client.init(&seen(0.5, -0.25), &[]).unwrap();
    assert_eq!(values::<i64>(&actions[0]), [2]);
    assert_eq!((client.session(), client.algorithm()), ("s1", "da3c"));
    client.step(&step(1.0, seen(0.75, 0.0))).unwrap();
    client.close();
    let told = server.join().unwrap();
    for due in [
        "42070a05080b1201024a041202080350015a01016001",
        "0000001412120a10080b120201021a080000003f000080be",
        "0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000",
    ] {
        assert!(contains(&told, due) > 0, "{due} is not in {told:02x?}");
    }
}

#[test]
fn invalid_arguments_are_not_sent() {
    let (address, server) = serve(vec![vec![unhex(WELCOME), unhex(ACTIONS)]]);
    let mut client = Client::new(point(&address)).unwrap();
    assert!(!client.metric("before", 1.0).unwrap());
    assert!(matches!(client.init(&seen(0.0, f32::NAN), &[]), Err(Error::Invalid { .. })));
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    let right = step(1.0, seen(0.0, 0.0));
    for wrong in [
        step(2e15, seen(0.0, 0.0)),
        step(f64::NAN, seen(0.0, 0.0)),
        step(1.0, vec![vec![1]]),
        Outcome { reward: vec![1.0, 1.0], ..right.clone() },
        Outcome { terminated: vec![true], ..right.clone() },
        Outcome { final_observation: seen(0.0, 0.0), ..right.clone() },
        Outcome { episodes: vec![Episode { environment: 0, episode_return: 1.0, length: 1 }], ..right.clone() },
    ] {
        assert!(matches!(client.step(&wrong), Err(Error::Invalid { .. })), "{wrong:?}");
    }
    let cut = Outcome { reward: vec![1.0], truncated: vec![true], ..Outcome::default() };
    assert!(matches!(client.reset(&cut), Err(Error::Invalid { .. })));
    for (name, value) in [("", 1.0), ("x", f64::NAN), ("x", 2e30)] {
        assert!(client.metric(name, value).is_err(), "{name}");
    }
    drop(client);
    let told = server.join().unwrap();
    assert!(contains(&told, "1a1c") == 0, "a step was sent: {told:02x?}");
    for shape in [vec![0], vec![65_536, 65_536]] {
        let space = Space::unbounded(Dtype::Float32, &shape);
        assert!(Client::new(Config::new("a:1", space, Space::discrete(3))).is_err());
    }
    let mut many = point("a:1");
    many.autoreset = vec![Autoreset::SameStep; 2];
    assert!(Client::new(many).is_err());
}

#[test]
fn long_hello_omits_bounds_or_is_refused() {
    let many = Space::Box { dtype: Dtype::Float32, shape: vec![9000], low: vec![0.0; 9000], high: vec![] };
    let (address, server) = serve(vec![vec![unhex(WELCOME)]]);
    let mut config = point(&address);
    config.observation = Space::Dict([("key".into(), Space::Tuple(vec![many.clone()]))].into());
    config.action = Space::Box { dtype: Dtype::Float32, shape: vec![2], low: vec![-3.0, 5.0], high: vec![] };
    Client::new(config).unwrap().connect().unwrap();
    let told = server.join().unwrap();
    assert!(told.len() < 200 && contains(&told, "1a1000000000000008c00000000000001440") == 1, "{told:02x?}");
    let mut config = point("127.0.0.1:1"); // refused without an attempt to connect
    (config.action, config.retry) = (many, Duration::from_secs(60));
    is_invalid(Client::new(config).unwrap().connect(), "use one bound for all elements");
}

#[test]
fn invalid_configurations() {
    let hosts = ["", "localhost", "[::1]", "http://a:1"];
    for address in hosts.into_iter().chain(["localhost:", ":7001", "localhost:0", "localhost:70010", "localhost:7001,"])
    {
        match Client::new(point(address)) {
            Err(Error::Invalid { sentence }) => assert!(sentence.contains("HOST:PORT"), "{sentence}"),
            other => panic!("{address:?}: {:?}", other.map(|_| "a client")),
        }
    }
    assert!(Client::new(point("localhost:7001 , [::1]:7001")).is_ok());
    for (n, start) in [(0, 0), (i64::MIN, 0), (2, i64::MAX)] {
        assert!(Client::new(Config::new("a:1", Space::discrete(2), Space::Discrete { n, start })).is_err());
    }
    let mut config = point("localhost:7001");
    config.token = "secret".into();
    let shown = format!("{config:?}");
    assert!(shown.contains("localhost:7001") && !shown.contains("secret"), "{shown}");
}

/// In a step, only the rows of ended episodes of a final observation are checked; their number and size always are.
#[test]
fn final_observations() {
    let two = unhex("0000001b12190a1708091201021a1000000000000000000000000000000000");
    let returns = unhex("000000141a120a1000000000000000000000000000000000");
    let (address, server) = serve(vec![vec![unhex(WELCOME), two.clone(), two, returns]]);
    let mut config = point(&address);
    (config.environments, config.autoreset) = (2, vec![Autoreset::SameStep]);
    let mut client = Client::new(config).unwrap();
    let (seen, nan) = (vec![bytes(&[0f32; 4])], f32::NAN);
    let filled = vec![bytes(&[nan, nan, 1.0, 2.0])];
    assert!(matches!(client.init(&seen, &[true]), Err(Error::Invalid { .. }))); // partial has too few entries
    client.init(&seen, &[false, true]).unwrap();
    let cut =
        Outcome { reward: vec![0.0; 2], truncated: vec![false, true], observation: seen.clone(), ..Outcome::default() };
    for wrong in [vec![bytes(&[1.0, 2.0, nan, nan])], vec![vec![1, 2]], [filled.clone(), filled.clone()].concat()] {
        let outcome = Outcome { final_observation: wrong, ..cut.clone() };
        assert!(matches!(client.step(&outcome), Err(Error::Invalid { .. })), "{outcome:?}");
    }
    client.step(&Outcome { final_observation: filled.clone(), ..cut }).unwrap();
    let end = Outcome { reward: vec![0.0; 2], ..Outcome::default() };
    let wrong = Outcome { final_observation: filled, ..end.clone() };
    assert!(matches!(client.reset(&wrong), Err(Error::Invalid { .. }))); // every row counts
    client.reset(&Outcome { final_observation: seen, ..end }).unwrap();
    drop(client);
    server.join().unwrap();
}

/// A field of bytes.
fn part(tag: u8, content: &[u8]) -> Vec<u8> {
    let size = content.len();
    let head = if size < 128 { vec![tag, size as u8] } else { vec![tag, size as u8 | 128, (size >> 7) as u8] };
    [&head, content].concat()
}

/// A message in a frame.
fn framed(tag: u8, content: &[u8]) -> Vec<u8> {
    let payload = part(tag, content);
    [&(payload.len() as u32).to_be_bytes(), &payload[..]].concat()
}

const OUT_OF_STEP: [u8; 2] = [0x30, 1];
const CHOSEN_ACTIONS: [u8; 2] = [0x38, 1];

/// A welcome with more fields, such as `OUT_OF_STEP`.
fn grants(fields: &[u8]) -> Vec<u8> {
    framed(0x0a, &[&unhex(WELCOME)[6..], fields].concat())
}

/// The fields of a welcome with parameters.
fn named(names: &[&str], numbers: &[f64]) -> Vec<u8> {
    let names = names.iter().flat_map(|name| part(0x4a, name.as_bytes())).collect();
    [vec![0x40, 1], names, part(0x52, &bytes(numbers))].concat()
}

/// The fields of actions with parameters.
fn change(of: &[u8], numbers: &[f64]) -> Vec<u8> {
    [part(0x12, of), part(0x1a, &bytes(numbers))].concat()
}

/// A leaf of actions.
fn acts(tag: u8, action: &[i64]) -> Vec<u8> {
    part(tag, &[vec![8, 9, 0x12, 1, action.len() as u8], part(0x1a, &bytes(action))].concat())
}

/// Actions with more fields.
fn renews(n: usize, fields: &[u8]) -> Vec<u8> {
    framed(0x12, &[&acts(0x0a, &vec![0; n]), fields].concat())
}

fn answers(n: usize) -> Vec<u8> {
    renews(n, &[])
}

fn frames(told: &[u8]) -> Vec<&[u8]> {
    let (mut frames, mut rest) = (vec![], told);
    while !rest.is_empty() {
        let (frame, others) = rest.split_at(4 + usize::from(rest[3]) + 256 * usize::from(rest[2]));
        frames.push(frame);
        rest = others;
    }
    frames
}

fn is_invalid<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(Error::Invalid { sentence }) if sentence.contains(part) => {}
        other => panic!("{part:?}: {other:?}"),
    }
}

/// Two players take turns: the example of section 8. Void rows are NaN.
#[test]
fn players_take_turns() {
    let mut script = vec![grants(&OUT_OF_STEP)];
    script.extend(vec![answers(2); 7]);
    script.push(unhex("000000141a120a1000000000000000000000000000000000"));
    let (address, server) = serve(vec![script]);
    let mut config = point(&address);
    (config.environments, config.autoreset, config.out_of_step) = (2, vec![Autoreset::SameStep], true);
    let mut client = Client::new(config).unwrap();
    let rows = |numbers: [f32; 4]| vec![bytes(&numbers)];
    let (nan, zeros) = (f32::NAN, rows([0.0; 4]));
    let (first, second, none) = (rows([1.0, 2.0, nan, nan]), rows([nan, nan, 3.0, 4.0]), rows([nan; 4]));
    let turn = |observation: &Leaves, idle: &[bool]| Outcome {
        reward: vec![0.0; 2],
        observation: observation.clone(),
        idle: idle.to_vec(),
        ..Outcome::default()
    };
    let (all, void) = (vec![true; 2], "leaf 0");
    is_invalid(client.init_idle(&second, &[], &[false, true]), void);
    is_invalid(client.init_idle(&first, &[], &[true]), "1 entries");
    client.init_idle(&first, &[], &[false, true]).unwrap();
    is_invalid(client.step(&turn(&second, &[true])), "1 entries");
    is_invalid(client.step(&turn(&first, &[true, false])), void);
    let away = Outcome { terminated: vec![false, true], ..turn(&second, &[true, false]) };
    is_invalid(client.step(&away), "environment 1 cannot end");
    client.step(&turn(&second, &[true, false])).unwrap();
    client.step(&turn(&first, &[false, true])).unwrap();
    let cut = Outcome { truncated: all.clone(), ..turn(&none, &all) };
    is_invalid(client.step(&cut), "final observation");
    let over = Outcome { terminated: all.clone(), ..turn(&none, &all) };
    client.step(&over).unwrap();
    is_invalid(client.step(&over), "environment 0 cannot end");
    client.step(&turn(&none, &all)).unwrap();
    client.step(&turn(&zeros, &[])).unwrap();
    client.step(&Outcome { final_observation: zeros.clone(), ..cut }).unwrap();
    let end = Outcome { reward: vec![0.0; 2], truncated: all, final_observation: zeros, ..Outcome::default() };
    client.reset(&end).unwrap(); // they have left: nothing is truncated
    drop(client);
    let told = server.join().unwrap();
    let frames = frames(&told);
    assert!(frames[0].ends_with(&[0x60, 1, 0x78, 1]), "{:02x?}", frames[0]);
    let ends = ["1a020001", "3202000142020100", "42020001", "1a02010142020101", "42020101", "32020101"];
    for (frame, end) in frames[1..].iter().zip(ends) {
        assert!(frame.ends_with(&unhex(end)), "{frame:02x?} does not end with {end}");
    }
    assert_eq!((contains(frames[3], "3202"), contains(frames[5], "3202")), (0, 0)); // no `first`
    assert_eq!((contains(frames[7], "22020101"), contains(frames[7], "42020101")), (1, 1));
    assert_eq!(contains(frames[8], "12020101"), 0);
}

#[test]
fn idle_by_autoreset_mode() {
    let (seen, all, nan) = (vec![bytes(&[0f32; 6])], vec![true; 3], f32::NAN);
    let idle = Outcome { reward: vec![0.0; 3], observation: seen.clone(), idle: all.clone(), ..Outcome::default() };
    let (address, server) =
        serve(vec![vec![unhex(WELCOME), answers(3)], vec![grants(&OUT_OF_STEP), answers(3), answers(3)]]);
    let mut config = point(&address);
    config.environments = 3;
    let mut client = Client::new(config.clone()).unwrap();
    is_invalid(client.init_idle(&seen, &[], &all), "out_of_step");
    client.init_idle(&seen, &[], &[false; 3]).unwrap();
    is_invalid(client.step(&idle), "out_of_step");
    drop(client);
    config.autoreset = vec![Autoreset::Disabled, Autoreset::SameStep, Autoreset::NextStep];
    config.out_of_step = true;
    let mut client = Client::new(config).unwrap();
    client.init(&seen, &[]).unwrap();
    let ends = |last: f32, truncated: [bool; 3]| Outcome {
        observation: vec![bytes(&[nan, nan, nan, nan, 0.0, last])],
        truncated: truncated.to_vec(),
        ..idle.clone()
    };
    is_invalid(client.step(&ends(0.0, [true, false, false])), "environment 0 cannot end");
    is_invalid(client.step(&ends(nan, [false, false, true])), "leaf 0"); // the final observation of NEXT_STEP
    let last = |y: f32| Outcome {
        final_observation: vec![bytes(&[nan, nan, 0.0, y, nan, nan])],
        ..ends(0.0, [false, true, true])
    };
    is_invalid(client.step(&last(nan)), "leaf 0"); // the final observation of SAME_STEP
    client.step(&last(0.0)).unwrap();
    is_invalid(client.step(&ends(0.0, [false, false, true])), "environment 2 cannot end");
    drop(client);
    server.join().unwrap();
}

/// A person takes over. Rows that are not chosen are not actions.
#[test]
fn chosen_actions() {
    let (all, observation) = (vec![true; 2], vec![bytes(&[0f32; 4])]);
    let took = |action: [i64; 2], chosen: &[bool]| Outcome {
        reward: vec![0.0; 2],
        observation: observation.clone(),
        action: vec![bytes(&action)],
        chosen: chosen.to_vec(),
        ..Outcome::default()
    };
    let returns = unhex("000000141a120a1000000000000000000000000000000000");
    let mut script = vec![grants(&[OUT_OF_STEP, CHOSEN_ACTIONS].concat())];
    script.extend(vec![answers(2); 6]);
    let (address, server) = serve(vec![vec![unhex(WELCOME), answers(2), answers(2)], [script, vec![returns]].concat()]);
    let mut config = point(&address);
    (config.environments, config.autoreset) = (2, vec![Autoreset::NextStep]);
    let mut client = Client::new(config.clone()).unwrap();
    client.init(&observation, &[]).unwrap();
    is_invalid(client.step(&took([0, 0], &[false, true])), "environment 1: set chosen_actions");
    client.step(&took([0, 0], &[false; 2])).unwrap();
    drop(client);
    (config.out_of_step, config.chosen_actions) = (true, true);
    let mut client = Client::new(config).unwrap();
    client.init(&observation, &[]).unwrap();
    is_invalid(client.step(&took([0, 0], &[true])), "1 entries");
    is_invalid(client.step(&took([0, 3], &all)), "leaf 0 of the action");
    is_invalid(client.step(&took([-1, 0], &all)), "leaf 0 of the action");
    is_invalid(client.step(&Outcome { action: vec![], ..took([0, 0], &all) }), "an action has 0 leaves");
    is_invalid(client.step(&Outcome { action: vec![vec![0; 8]], ..took([0, 0], &all) }), "leaf 0 of the action");
    is_invalid(client.reset(&Outcome { observation: vec![], ..took([0, 3], &all) }), "leaf 0 of the action");
    client.step(&took([-1, 2], &[false, true])).unwrap();
    client.step(&took([9, 9], &[false; 2])).unwrap();
    client.step(&Outcome { action: vec![], ..took([0, 0], &[]) }).unwrap();
    let over = Outcome { terminated: vec![false, true], idle: all.clone(), ..took([9, 1], &[false, true]) };
    is_invalid(client.step(&Outcome { chosen: all.clone(), ..over.clone() }), "chosen marks environment 0");
    client.step(&over).unwrap();
    is_invalid(client.step(&took([0, 0], &all)), "chosen marks environment 1"); // it is `first`
    is_invalid(client.reset(&Outcome { observation: vec![], ..took([0, 0], &all) }), "chosen marks environment 1");
    client.step(&took([2, 9], &[true, false])).unwrap();
    client.reset(&Outcome { observation: vec![], ..took([2, 1], &all) }).unwrap();
    drop(client);
    let told = server.join().unwrap();
    let frames: Vec<&[u8]> = frames(&told).into_iter().skip_while(|frame| !frame.ends_with(&[0x80, 1, 1])).collect();
    let own = |masks: &str, tag: u8, action: [i64; 2]| [unhex(masks), acts(tag, &action)].concat();
    assert!(frames[2].ends_with(&own("4a020001", 0x52, [-1, 2])), "{:02x?}", frames[2]);
    assert_eq!(frames[3], frames[4]); // neither has an action
    assert!(frames[5].ends_with(&own("420201014a020001", 0x52, [9, 1])), "{:02x?}", frames[5]);
    assert!(frames[6].ends_with(&own("320200014a020100", 0x52, [2, 9])), "{:02x?}", frames[6]);
    assert!(frames[7].ends_with(&own("2a020101", 0x32, [2, 1])), "{:02x?}", frames[7]);
}

/// With `chosen_actions`, the longest step has observations and actions: 8 and 8 bytes.
#[test]
fn frame_limit_includes_chosen_actions() {
    for (asked, limit, fits) in [(true, 16, true), (true, 15, false), (false, 8, true), (false, 7, false)] {
        let more = [if asked { CHOSEN_ACTIONS.to_vec() } else { vec![] }, vec![0x2a, 2, 8, limit]].concat();
        let (address, server) = serve(vec![vec![grants(&more)]]);
        let mut config = point(&address);
        config.chosen_actions = asked;
        let mut client = Client::new(config).unwrap();
        match client.connect() {
            Err(Error::Failed { code: 9, .. }) if !fits => {}
            Ok(()) if fits => {}
            other => panic!("{limit}: {other:?}"),
        }
        drop(client);
        server.join().unwrap();
    }
}

#[test]
fn parameters_change_with_actions() {
    let first = named(&["size", "gravity"], &[1.0, 2.0, 3.0, 4.0]);
    let (both, one) = (change(&[0, 1], &[5.0, 6.0, 7.0, -1e30]), change(&[1], &[8.0, 9.0]));
    let script = vec![grants(&first), renews(2, &both), renews(2, &one), answers(2)];
    let (address, server) = serve(vec![vec![unhex(WELCOME)], script, vec![grants(&named(&[], &[])), answers(2)]]);
    let mut config = point(&address);
    config.environments = 2;
    let mut client = Client::new(config.clone()).unwrap();
    is_invalid(client.parameters(), "environment_parameters");
    client.connect().unwrap();
    drop(client);
    config.environment_parameters = true;
    let mut client = Client::new(config.clone()).unwrap();
    let has = |client: &mut Client, sizes: [f64; 2], gravities: [f64; 2]| {
        let due: [(String, Vec<f64>); 2] = [("size".into(), sizes.to_vec()), ("gravity".into(), gravities.to_vec())];
        assert_eq!(client.parameters().unwrap(), due);
    };
    let observation = vec![bytes(&[0f32; 4])];
    let outcome = Outcome { reward: vec![0.0; 2], observation: observation.clone(), ..Outcome::default() };
    has(&mut client, [1.0, 3.0], [2.0, 4.0]); // it connects
    client.init(&observation, &[]).unwrap();
    has(&mut client, [5.0, 7.0], [6.0, -1e30]);
    client.step(&outcome).unwrap();
    has(&mut client, [5.0, 8.0], [6.0, 9.0]);
    client.step(&outcome).unwrap();
    has(&mut client, [5.0, 8.0], [6.0, 9.0]);
    drop(client);
    let mut client = Client::new(config).unwrap(); // without parameters, episodes are not partial
    client.init(&observation, &[]).unwrap();
    assert!(client.parameters().unwrap().is_empty());
    drop(client);
    let told = server.join().unwrap();
    assert_eq!((contains(&told, "6001880101"), contains(&told, "12020101")), (2, 0));
}

/// An episode that did not begin with parameters of its connection is partial.
#[test]
fn partial_without_parameters_of_connection() {
    let welcome = grants(&named(&["size"], &[1.0, 2.0]));
    let lost = vec![welcome.clone(), answers(2), vec![]];
    let returns = unhex("000000141a120a1000000000000000000000000000000000");
    let last = vec![welcome, answers(2), returns, answers(2)];
    let (address, server) = serve(vec![lost.clone(), lost.clone(), last]);
    let mut config = point(&address);
    (config.environments, config.environment_parameters, config.retry) = (2, true, Duration::from_secs(60));
    let mut client = Client::new(config).unwrap();
    let observation = vec![bytes(&[0f32; 4])];
    let outcome = Outcome { reward: vec![0.0; 2], observation: observation.clone(), ..Outcome::default() };
    client.parameters().unwrap();
    client.init(&observation, &[]).unwrap();
    assert!(matches!(client.step(&outcome), Err(Error::Interrupted { .. })));
    client.init(&observation, &[false, true]).unwrap(); // it reconnects
    assert!(matches!(client.step(&outcome), Err(Error::Interrupted { .. })));
    client.parameters().unwrap(); // it reconnects
    client.init(&observation, &[false, true]).unwrap();
    client.reset(&Outcome { observation: vec![], ..outcome }).unwrap();
    client.init(&observation, &[]).unwrap();
    drop(client);
    let told = server.join().unwrap();
    let inits: Vec<&[u8]> = frames(&told).into_iter().filter(|frame| frame[4] == 0x12).collect();
    let partial: Vec<bool> = inits.iter().map(|frame| frame.ends_with(&[0x12, 2, 1, 1])).collect();
    assert_eq!(partial, [false, true, false, false]);
    assert!(inits[2].ends_with(&[0x12, 2, 0, 1]), "{:02x?}", inits[2]);
}

#[test]
fn invalid_parameters_are_refused() {
    let (long, longer) = ("x".repeat(256), "x".repeat(257));
    let right = named(&["a", "b"], &[1.0, 2.0, 3.0, 4.0]);
    for (welcome, more, due) in [
        (right.clone(), change(&[0, 1], &[1e30, 2.0, 3.0, 4.0]), 0),
        (right.clone(), change(&[], &[]), 0),
        (named(&[&long], &[1.0, 2.0]), vec![], 0),
        (named(&[&longer], &[1.0, 2.0]), vec![], 9),
        (named(&["a"; 65], &[1.0; 130]), vec![], 9),
        (named(&["a", "a"], &[1.0, 2.0, 3.0, 4.0]), vec![], 8),
        (named(&["a", ""], &[1.0, 2.0, 3.0, 4.0]), vec![], 8),
        (named(&["a", "b\n"], &[1.0, 2.0, 3.0, 4.0]), vec![], 8),
        ([named(&["a"], &[1.0, 2.0]), vec![0x4a, 1, 255]].concat(), vec![], 1),
        (named(&["a", "b"], &[1.0, 2.0, 3.0]), vec![], 8),
        (named(&["a", "b"], &[1.0; 5]), vec![], 8),
        (named(&[], &[1.0]), vec![], 8),
        (named(&["a"], &[1.0, f64::NAN]), vec![], 8),
        (named(&["a"], &[1.0, f64::INFINITY]), vec![], 8),
        (named(&["a"], &[1.0, -2e30]), vec![], 8),
        (right[2..].to_vec(), vec![], 8), // without the capability
        (right.clone(), change(&[0], &[1.0]), 8),
        (right.clone(), change(&[], &[1.0, 2.0]), 8),
        (right.clone(), change(&[1], &[1.0, f64::NAN]), 8),
        (right.clone(), change(&[1], &[2e30, 1.0]), 8),
        (right.clone(), change(&[1, 0], &[1.0, 2.0, 3.0, 4.0]), 8),
        (right.clone(), change(&[1, 1], &[1.0, 2.0, 3.0, 4.0]), 8),
        (right.clone(), change(&[2], &[1.0, 2.0]), 8),
        (right.clone(), change(&[128], &[]), 1),
    ] {
        let (address, server) = serve(vec![vec![grants(&welcome), renews(2, &more)]]);
        let mut config = point(&address);
        (config.environments, config.environment_parameters) = (2, true);
        let mut client = Client::new(config).unwrap();
        match client.init(&vec![bytes(&[0f32; 4])], &[]) {
            Err(Error::Failed { code, .. }) if code == due => {}
            Ok(_) if due == 0 => {}
            other => panic!("{due}: {other:?}"),
        }
        drop(client);
        server.join().unwrap();
    }
    let (address, server) = serve(vec![vec![unhex(WELCOME), renews(1, &change(&[0], &[]))]]);
    let mut client = Client::new(point(&address)).unwrap();
    let result = client.init(&seen(0.0, 0.0), &[]); // without the capability
    assert!(matches!(result, Err(Error::Failed { code: 8, .. })), "{result:?}");
    drop(client);
    server.join().unwrap();
}

/// A flag must be in the hello and in the welcome, or in neither.
#[test]
fn flags_of_welcome() {
    let what = ["environments out of step", "actions of the client", "parameters of environments"];
    for (at, name) in ["out_of_step", "chosen_actions", "environment_parameters"].into_iter().enumerate() {
        let grants = grants(&[0x30 + 8 * at as u8, 1]);
        let lacks = format!("the server or its algorithm does not support {}", what[at]);
        for (asked, welcome, due, part, bye) in [
            (false, unhex(WELCOME), 0, "", ""),
            (true, grants.clone(), 0, "", ""),
            (true, unhex(WELCOME), 6, &*lacks, &*format!("the welcome lacks {name}")),
            (false, grants, 8, "the server's mistake", "an answer with a value outside the agreed range"),
        ] {
            let (address, server) = serve(vec![vec![welcome, vec![]]]);
            let mut config = point(&address);
            let flags = [&mut config.out_of_step, &mut config.chosen_actions, &mut config.environment_parameters];
            *flags.into_iter().nth(at).unwrap() = asked;
            config.retry = Duration::from_secs(60);
            let mut client = Client::new(config).unwrap();
            match client.connect() {
                Err(Error::Failed { code, sentence }) if code == due => assert!(sentence.contains(part), "{sentence}"),
                Ok(()) if due == 0 => {}
                other => panic!("{due}: {other:?}"),
            }
            drop(client);
            let told = server.join().unwrap();
            assert!(told.ends_with(bye.as_bytes()), "{told:02x?}");
        }
    }
}

/// The server's last message before a failed write is used; pings are not answered.
#[test]
fn last_message_of_server_is_reported() {
    let (pinged, pong) = ("0000000432020807", "000000043a020801");
    let refused = "000000162214080e1210746865206167656e74206661696c6564";
    let finished = "000000062a0410c0c407";
    for (said, due) in [([pinged, finished], "finished"), ([ACTIONS, refused], "14"), ([pinged, ""], "lost")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = Client::new(point(&listener.local_addr().unwrap().to_string())).unwrap();
        let server = spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in [unhex(WELCOME), unhex(&[ACTIONS, pong].concat())] {
                assert!(asked(&mut stream, &mut vec![]));
                stream.write_all(&answer).unwrap();
            }
            stream
        });
        client.init(&seen(0.0, 0.0), &[]).unwrap();
        let mut stream = server.join().unwrap();
        client.alive().unwrap(); // its pong arrived before; to close with the ping unread resets the connection
        stream.peek(&mut [0]).unwrap();
        stream.write_all(&unhex(&said.concat())).unwrap();
        drop(stream);
        let end = match client.step(&step(1.0, seen(0.0, 0.0))) {
            Err(Error::Finished { global_step: 123_456, .. }) => "finished".into(),
            Err(Error::Failed { code, .. }) => code.to_string(),
            Err(Error::Interrupted { code: 0, .. }) => "lost".into(),
            other => format!("{other:?}"),
        };
        assert_eq!(end, due);
    }
}

/// If the heartbeat is very short, the client still waits for some seconds.
#[test]
fn silence_timeout_has_minimum() {
    let mut hasty = unhex(WELCOME);
    let at = hasty.windows(8).position(|window| window == 10f64.to_le_bytes()).unwrap();
    hasty[at..at + 8].copy_from_slice(&0.01f64.to_le_bytes());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new(point(&listener.local_addr().unwrap().to_string())).unwrap();
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for (answer, after) in [(hasty, 0), (unhex(ACTIONS), 300)] {
            assert!(asked(&mut stream, &mut vec![]));
            sleep(Duration::from_millis(after)); // more than 3 heartbeats
            stream.write_all(&answer).unwrap();
        }
    });
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    server.join().unwrap();
}

static REASONS: Mutex<Vec<String>> = Mutex::new(vec![]);

#[test]
fn reconnects() {
    let full = unhex("000000152213080b120466756c6c180121000000000000e83f");
    let end = unhex("000000062a0410c0c407");
    let (address, server) =
        serve(vec![vec![unhex(WELCOME), unhex(ACTIONS), vec![]], vec![full], vec![unhex(WELCOME), unhex(ACTIONS), end]]);
    let mut config = point(&format!("{address},{address}"));
    config.retry = Duration::from_secs(60);
    config.on_retry = |reason, _| REASONS.lock().unwrap().push(reason.to_owned());
    let mut client = Client::new(config).unwrap();
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    assert!(matches!(client.step(&step(1.0, seen(0.0, 0.0))), Err(Error::Interrupted { .. })));
    let began = Instant::now();
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    assert_eq!(REASONS.lock().unwrap()[..], ["the server's stream ended", "full"]);
    assert!(began.elapsed() >= Duration::from_secs(1)); // at least 0.25 s, then the 0.75 s of the error
    let end = client.step(&step(1.0, seen(0.0, 0.0)));
    assert!(matches!(end, Err(Error::Finished { global_step: 123_456, .. })), "{end:?}");
    assert!(matches!(client.init(&seen(0.0, 0.0), &[]), Err(Error::Finished { .. })));
    assert_eq!(contains(&server.join().unwrap(), "6a027331"), 2); // the session id in the hellos of the two reconnects
}

#[test]
fn changed_answers_are_accepted_or_refused() {
    let mut state = 1u64;
    let mut below = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let granted = [&OUT_OF_STEP[..], &CHOSEN_ACTIONS, &named(&["size", "gravity"], &[1.0, 2.0])].concat();
    let mut scripts = vec![];
    for round in 0..1000 {
        let mut frames = [grants(&granted), renews(1, &change(&[0], &[3.0, 4.0]))];
        let changed = &mut frames[round % 2];
        for _ in 0..1 + below(3) {
            let at = 4 + below(changed.len() - 4);
            match below(3) {
                0 => changed[at] ^= 1 << below(8),
                1 => changed[at] = below(256) as u8,
                _ => changed.insert(at, below(256) as u8),
            }
        }
        changed[3] = (changed.len() - 4) as u8;
        scripts.push(frames.to_vec());
    }
    let (address, server) = serve(scripts);
    let mut config = point(&address);
    (config.out_of_step, config.chosen_actions, config.environment_parameters) = (true, true, true);
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..1000 {
        let mut client = Client::new(config.clone()).unwrap();
        match client.init(&seen(0.0, 0.0), &[]) {
            Ok(_) => understood += 1,
            Err(Error::Invalid { sentence }) => panic!("{sentence}"),
            Err(_) => refused += 1,
        }
    }
    server.join().unwrap();
    assert!(understood > 50 && refused > 50, "{understood} {refused}");
}
