//! What the golden conversations do not show: the example of section 13, what is refused before it is sent, connecting
//! again, and answers that were right before they were changed.

use rlx::{bytes, values, Autoreset, Client, Config, Dtype, Episode, Error, Leaves, Outcome, Space};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{spawn, JoinHandle};
use std::time::{Duration, Instant};

const WELCOME: &str =
    "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
const ACTIONS: &str = "0000001312110a0f08091201011a080200000000000000";

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Read frames up to one that is answered.
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

/// A server that answers each question with the next frame of a script, one script for each connection; then it hangs
/// up. What it was told is the result.
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
fn bytes_of_the_page() {
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
fn refused_before_it_is_sent() {
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
fn connects_again() {
    let full = unhex("000000152213080b120466756c6c180121000000000000e83f");
    let end = unhex("000000062a0410c0c407");
    let (address, server) =
        serve(vec![vec![unhex(WELCOME), unhex(ACTIONS)], vec![full], vec![unhex(WELCOME), unhex(ACTIONS), end]]);
    let mut config = point(&format!("{address},{address}"));
    config.retry = Duration::from_secs(60);
    let mut client = Client::new(config).unwrap();
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    assert!(matches!(client.step(&step(1.0, seen(0.0, 0.0))), Err(Error::Interrupted { .. })));
    let began = Instant::now();
    client.init(&seen(0.0, 0.0), &[]).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1)); // 0.25 s at least, then the 0.75 s of the error
    let end = client.step(&step(1.0, seen(0.0, 0.0)));
    assert!(matches!(end, Err(Error::Finished { global_step: 123_456, .. })), "{end:?}");
    assert!(matches!(client.init(&seen(0.0, 0.0), &[]), Err(Error::Finished { .. })));
    assert_eq!(contains(&server.join().unwrap(), "6a027331"), 2); // the session id of the two that came back
}

#[test]
fn changed_answers_are_understood_or_refused() {
    let mut state = 1u64;
    let mut below = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut scripts = vec![];
    for round in 0..1000 {
        let mut frames = [unhex(WELCOME), unhex(ACTIONS)];
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
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..1000 {
        let mut client = Client::new(point(&address)).unwrap();
        match client.init(&seen(0.0, 0.0), &[]) {
            Ok(_) => understood += 1,
            Err(Error::Invalid { sentence }) => panic!("{sentence}"),
            Err(_) => refused += 1,
        }
    }
    server.join().unwrap();
    assert!(understood > 50 && refused > 50, "{understood} {refused}");
}
