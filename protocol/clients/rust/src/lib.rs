//! A client of RLX, version 1 (protocol/RLX.md). It connects environments in Rust to the agents of a RELAAX server.
//! No dependencies, no `unsafe`. TLS is not in the standard library: see the README.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod space;
mod wire;

pub use space::{bytes, values, Dtype, Element, Space};

use space::Leaf;
use std::collections::hash_map::RandomState;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::{read_actions, read_names, read_numbers, Message, Part, LIMIT, MALFORMED, SPACE, VALUE};

const HELLO: u64 = 1;
const INIT: u64 = 2;
const STEP: u64 = 3;
const RESET: u64 = 4;
const METRICS: u64 = 5;
const PING: u64 = 6;
const PONG: u64 = 7;
const BYE: u64 = 8;
const WELCOME: u64 = 1;
const ACTIONS: u64 = 2;
const RETURNS: u64 = 3;
const HANDSHAKE_BYTES: usize = 65_536;
const SPEAKS_GRPC: &str = "this port speaks gRPC, like the ports of parameter and replay servers: \
    connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)";
/// The fields 15 to 17 of hello and 6 to 8 of welcome, and what they are for.
const CAPABILITIES: [(&str, &str); 3] = [
    ("out_of_step", "environments out of step"),
    ("chosen_actions", "actions of the client"),
    ("environment_parameters", "parameters of environments"),
];
/// The start of a gRPC server's stream, after 3 bytes. No RLX payload begins with a zero byte.
const SETTINGS: [u8; 6] = [4, 0, 0, 0, 0, 0];

/// The error of a call. `code` is an error code of RLX.md, section 9, or 0.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Error {
    /// The connection and its episodes are lost. Reset the environments and call `init`, which reconnects.
    Interrupted { code: u64, sentence: String },
    /// Training has finished.
    Finished { global_step: u64, sentence: String },
    /// A retry is useless, or the retries took too long.
    Failed { code: u64, sentence: String },
    /// An argument is invalid. Nothing was sent, and the connection remains open.
    Invalid { sentence: String },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Interrupted { sentence, .. } | Error::Finished { sentence, .. } => f.write_str(sentence),
            Error::Failed { sentence, .. } | Error::Invalid { sentence } => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Error {}

fn invalid<T>(sentence: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid { sentence: sentence.into() })
}

/// The autoreset mode of an environment: how its next episode begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Autoreset {
    Disabled = 1,
    SameStep,
    NextStep,
}

/// Whether the agent learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Learn from this client.
    Train = 1,
    /// Act as well as possible, do not learn.
    Exploit,
}

/// The configuration of a client. `Config::new` sets the defaults.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Config {
    /// HOST:PORT. After each failure the client tries the next one.
    pub addresses: Vec<String>,
    pub token: String,
    pub environment: String,
    pub host: String,
    pub session_id: String,
    pub observation: Space,
    pub action: Space,
    /// The number of environments, N.
    pub environments: usize,
    pub frame_skip: u32,
    /// One mode for all environments, or N.
    pub autoreset: Vec<Autoreset>,
    pub mode: Mode,
    pub reports_episodes: bool,
    /// For `init_idle` and `Outcome::idle`. The server's algorithm must support it.
    pub out_of_step: bool,
    /// For `Outcome::chosen`. The server's algorithm must support it.
    pub chosen_actions: bool,
    /// For `parameters`. The server must support it.
    pub environment_parameters: bool,
    /// How long to retry after a failure. Zero: do not retry.
    pub retry: Duration,
    /// Called before each wait with the reason. The default prints a line to stderr.
    pub on_retry: fn(&str, Duration),
}

impl fmt::Debug for Config {
    /// Shows what identifies the client, without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Config");
        fields.field("addresses", &self.addresses).field("environment", &self.environment);
        fields.field("observation", &self.observation).field("action", &self.action);
        fields.field("environments", &self.environments).field("autoreset", &self.autoreset);
        fields.field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Config {
    /// The defaults: one environment, autoreset mode DISABLED, training, five minutes of retries.
    pub fn new(address: &str, observation: Space, action: Space) -> Config {
        Config {
            addresses: address.split(',').map(String::from).collect(),
            token: String::new(),
            environment: String::new(),
            host: String::new(),
            session_id: String::new(),
            observation,
            action,
            environments: 1,
            frame_skip: 1,
            autoreset: vec![Autoreset::Disabled],
            mode: Mode::Train,
            reports_episodes: false,
            out_of_step: false,
            chosen_actions: false,
            environment_parameters: false,
            retry: Duration::from_secs(300),
            on_retry: |reason, wait| eprintln!("RLX: {reason}; trying again in {:.1} s", wait.as_secs_f64()),
        }
    }

    /// Whether each of `CAPABILITIES` is needed.
    fn needs(&self) -> [bool; 3] {
        [self.out_of_step, self.chosen_actions, self.environment_parameters]
    }
}

/// A whole episode, as the client counts it.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Episode {
    pub environment: usize,
    pub episode_return: f64,
    pub length: u32,
}

/// The leaves of a batch: little-endian bytes with a leading axis N. See `bytes` and `values`.
pub type Leaves = Vec<Vec<u8>>;

/// Parameters of environments: names, each with the values of the N environments.
pub type Parameters = Vec<(String, Vec<f64>)>;

/// The outcome of the last actions. A mask is empty (all false) or has N entries.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// N rewards.
    pub reward: Vec<f64>,
    /// Empty in `reset`.
    pub observation: Leaves,
    /// Empty in `reset`.
    pub terminated: Vec<bool>,
    /// True if an episode was cut off.
    pub truncated: Vec<bool>,
    /// Required if an episode was truncated, with SAME_STEP (other rows are ignored) and in `reset`. Otherwise empty.
    pub final_observation: Leaves,
    /// With `reports_episodes`.
    pub episodes: Vec<Episode>,
    /// With `out_of_step`: true if no action is wanted. Empty in `reset`.
    pub idle: Vec<bool>,
    /// With `chosen_actions`: true if the environment took its row of `action` instead of the agent's action.
    pub chosen: Vec<bool>,
    /// Required if `chosen` has a true entry. Other rows are ignored.
    pub action: Leaves,
}

enum Answer {
    Welcome([bool; 3]), // the capabilities that it grants
    Actions(Leaves),
    Returns(Vec<f64>),
    Pong,
}

/// A connection of N environments to their agent.
pub struct Client {
    config: Config,
    observation: Vec<Leaf>,
    action: Vec<Leaf>,
    stream: Option<TcpStream>,
    playing: bool,
    answered: bool,
    broken: bool, // writes are no longer possible
    lost: Option<Error>,
    end: Option<Error>,
    retry_after: f64,
    address: usize,
    failures: i32,
    since: Instant,
    limit: usize,
    silence: Duration,
    name_limits: (u64, u64),
    names: HashSet<String>,
    buffer: Vec<u8>,
    scalars: Vec<u8>,
    between: Vec<bool>,
    parameters: Parameters,
    informed: bool, // the caller has read the parameters of this connection
    session: String,
    algorithm: String,
}

impl Client {
    /// Make a client. It does not connect yet.
    pub fn new(mut config: Config) -> Result<Client, Error> {
        let (mut observation, mut action, n) = (vec![], vec![], config.environments);
        for (space, leaves) in [(&config.observation, &mut observation), (&config.action, &mut action)] {
            space.leaves(leaves).or_else(invalid)?;
        }
        if config.addresses.is_empty() {
            return invalid("the address is missing");
        }
        for address in &mut config.addresses {
            *address = address.trim().into();
            let right = |(host, port): (&str, &str)| {
                !host.is_empty() && !host.contains('/') && port.parse::<u16>().map_or(false, |port| port > 0)
            };
            if !address.rsplit_once(':').map_or(false, right) {
                return invalid(format!(
                    "the address {address:?} is not HOST:PORT, as in localhost:7001 or [::1]:7001"
                ));
            }
        }
        if !(1..=65_536).contains(&n) || (config.autoreset.len() != 1 && config.autoreset.len() != n) {
            return invalid(format!("{n} environments: use 1 to 65536, and one autoreset mode for all or for each"));
        }
        Ok(Client {
            session: config.session_id.clone(),
            observation,
            action,
            stream: None,
            playing: false,
            answered: false,
            broken: false,
            lost: None,
            end: None,
            retry_after: 0.0,
            address: 0,
            failures: 0,
            since: Instant::now(),
            limit: HANDSHAKE_BYTES,
            silence: Duration::from_secs(60),
            name_limits: (0, 0),
            names: HashSet::new(),
            buffer: vec![],
            scalars: vec![],
            between: vec![false; n],
            parameters: vec![],
            informed: false,
            algorithm: String::new(),
            config,
        })
    }

    /// The session id of the latest welcome.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The name of the algorithm that acts.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    fn habit(&self, i: usize) -> Autoreset {
        self.config.autoreset[if self.config.autoreset.len() == 1 { 0 } else { i }]
    }

    /// The current address.
    fn place(&self) -> &str {
        &self.config.addresses[self.address % self.config.addresses.len()]
    }

    fn hang_up(&mut self) {
        self.stream = None;
        (self.playing, self.broken) = (false, false);
        self.buffer.clear();
        self.scalars.clear();
    }

    fn interrupted(&mut self, code: u64, sentence: String) -> Error {
        self.hang_up();
        let error = Error::Interrupted { code, sentence };
        self.lost = Some(error.clone());
        error
    }

    fn say_bye(&mut self, reason: &str) {
        if let Some(stream) = &mut self.stream {
            let _ = stream.write_all(&Part::default().text(1, reason).frame(BYE));
        }
    }

    /// Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9).
    fn mistake(&mut self, code: u64, what: &str) -> Error {
        if self.broken {
            return Error::Interrupted { code, sentence: what.into() };
        }
        self.say_bye(what);
        let sentence = format!("the server's mistake: {what}");
        if self.answered {
            return self.interrupted(code, sentence);
        }
        self.hang_up();
        Error::Failed { code, sentence: format!("{}: {sentence}: is it an RLX server?", self.place()) }
    }

    /// Write the pending scalars and a message in one call.
    fn send(&mut self, kind: u64, content: &Part) -> Result<(), Error> {
        let frame = content.frame(kind);
        if frame.len() - 4 > self.limit {
            return invalid(format!(
                "a message of {} bytes; the server accepts at most {}",
                frame.len() - 4,
                self.limit
            ));
        }
        let mut data = std::mem::take(&mut self.scalars);
        data.extend_from_slice(&frame);
        match self.stream.as_mut().map(|stream| stream.write_all(&data)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.last_words(&error)),
            None => Err(self.interrupted(0, "there is no connection".into())),
        }
    }

    /// After a failed write: the server's last message may still be readable, and has the reason.
    fn last_words(&mut self, failed: &std::io::Error) -> Error {
        self.broken = true;
        if let Some(stream) = &self.stream {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
        }
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            match self.look_around() {
                Err(error) if self.stream.is_none() => return error,
                Ok(()) if Instant::now() < until && self.read().is_ok() => {}
                _ => return self.interrupted(0, format!("the connection is lost: {failed}")),
            }
        }
    }

    /// Read bytes into the buffer, or return why there are none.
    fn read(&mut self) -> Result<(), String> {
        let mut room = [0; 16_384];
        match self.stream.as_mut().map(|stream| stream.read(&mut room)) {
            Some(Ok(size)) if size > 0 => self.buffer.extend_from_slice(&room[..size]),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Some(Err(error)) => return Err(format!("the server is unreachable or silent: {error}")),
            _ => return Err("the server's stream ended".into()),
        }
        Ok(())
    }

    /// The next frame, if it has arrived. Its length is checked before its body is read.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let Some(head) = self.buffer.get(..4) else { return Ok(None) };
        let size = u32::from_be_bytes(head.try_into().expect("4 bytes")) as usize;
        if !self.answered && self.buffer.get(3..9) == Some(&SETTINGS) {
            self.hang_up();
            return Err(Error::Failed { code: MALFORMED, sentence: format!("{}: {SPEAKS_GRPC}", self.place()) });
        }
        if size == 0 {
            return Err(self.mistake(MALFORMED, "a frame of length 0"));
        }
        if size > self.limit {
            return Err(self.mistake(2, &format!("a frame of {size} bytes; the limit is {}", self.limit)));
        }
        if self.buffer.len() < 4 + size {
            return Ok(None);
        }
        let rest = self.buffer.split_off(4 + size);
        Ok(Some(std::mem::replace(&mut self.buffer, rest)))
    }

    /// Process the frames that have arrived.
    fn look_around(&mut self) -> Result<(), Error> {
        while let Some(frame) = self.frame()? {
            self.look(&frame[4..], 0)?;
        }
        Ok(())
    }

    /// Read and process frames until the expected answer arrives.
    fn hear(&mut self, due: u64) -> Result<Answer, Error> {
        loop {
            while let Some(frame) = self.frame()? {
                if let Some(answer) = self.look(&frame[4..], due)? {
                    return Ok(answer);
                }
            }
            if let Err(why) = self.read() {
                let question = format!("{}: no welcome: {why}: is it an RLX server without TLS?", self.place());
                return Err(self.interrupted(0, if due == WELCOME { question } else { why }));
            }
        }
    }

    /// Process one frame. Returns the answer if it is the expected one.
    fn look(&mut self, payload: &[u8], due: u64) -> Result<Option<Answer>, Error> {
        let Some(frame) = Message::parse(&[payload]) else {
            return Err(self.mistake(MALFORMED, "a frame is not valid Protobuf"));
        };
        let found: Vec<_> = frame.0.iter().filter(|f| f.number <= 8 && f.kind == 2).collect();
        if found.len() > 1 {
            return Err(self.mistake(MALFORMED, "two messages in one frame"));
        }
        let Some(found) = found.first() else { return Err(self.mistake(3, "an unknown message")) };
        let Some(m) = Message::parse(&[found.bytes]) else {
            return Err(self.mistake(MALFORMED, "a message is not valid Protobuf"));
        };
        let n = self.config.environments;
        let read = match found.number {
            4 | 5 | 8 => return Err(self.farewell(found.number, &m)),
            _ if self.broken => return Ok(None), // other messages no longer matter
            PING => {
                self.send(PONG, &Part::default().integer(1, m.integer(1) & 0xffff_ffff))?;
                return Ok(None);
            }
            PONG => return Ok(if due == PONG { Some(Answer::Pong) } else { None }),
            kind if kind != due => {
                return Err(self.mistake(3, &format!("message {kind} of the server is not allowed now")));
            }
            WELCOME => self.read_welcome(&m).map(Answer::Welcome),
            ACTIONS => read_actions(&m, &self.action, n)
                .and_then(|actions| self.update_parameters(&m).map(|()| Answer::Actions(actions))),
            _ => read_numbers(&m, 1, n).map(Answer::Returns),
        };
        read.map(Some).map_err(|code| self.mistake(code, "an answer with a value outside the agreed range"))
    }

    /// Returns the capabilities that the welcome grants.
    fn read_welcome(&mut self, m: &Message) -> Result<[bool; 3], u64> {
        let pieces = m.all(5);
        let limits = Message::parse(&pieces).ok_or(MALFORMED)?;
        let (session, algorithm) = (m.text(3).ok_or(MALFORMED)?, m.text(4).ok_or(MALFORMED)?);
        m.text(2).ok_or(MALFORMED)?;
        let (most, idle, heartbeat) = ((limits.integer(1) & 0xffff_ffff) as usize, limits.double(2), limits.double(3));
        let n = self.config.environments;
        let total = |leaves: &[Leaf]| leaves.iter().map(Leaf::size).sum::<usize>() * n;
        let copies = if self.config.autoreset.contains(&Autoreset::SameStep) { 2 } else { 1 };
        let (seen, acted) = (copies * total(&self.observation), total(&self.action));
        let least = if self.config.chosen_actions { seen + acted } else { seen.max(acted) };
        let (granted, needs) = ([6, 7, 8].map(|field| m.integer(field) != 0), self.config.needs());
        if m.integer(1) != 1 {
            return Err(4);
        }
        if !(idle > 0.0 && heartbeat > 0.0 && idle.is_finite() && heartbeat.is_finite()) {
            return Err(VALUE);
        }
        if session.len() > 128 || !session.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(VALUE);
        }
        let names = read_names(m)?;
        let values = read_numbers(m, 10, names.len() * n)?;
        if (0..3).any(|i| granted[i] && !needs[i]) || !granted[2] && !names.is_empty() {
            return Err(VALUE);
        }
        if least > most {
            return Err(LIMIT);
        }
        let column = |at| values.iter().skip(at).step_by(names.len()).copied().collect();
        self.parameters = names.iter().enumerate().map(|(at, name)| (name.clone(), column(at))).collect();
        self.informed = false;
        (self.session, self.algorithm, self.limit) = (session, algorithm, most);
        (self.name_limits, self.names) = ((limits.integer(4), limits.integer(5)), HashSet::new());
        self.silence = Duration::from_secs_f64((3.0 * heartbeat).clamp(5.0, 1e6));
        Ok(granted)
    }

    /// Replace the parameters for which an answer has new values.
    fn update_parameters(&mut self, m: &Message) -> Result<(), u64> {
        let n = if self.config.environment_parameters { self.config.environments } else { 0 };
        let of = m.integers(2, n).ok_or(MALFORMED)?;
        if of.windows(2).any(|two| two[0] >= two[1]) || of.last().map_or(false, |last| *last >= n as u64) {
            return Err(VALUE);
        }
        let count = self.parameters.len();
        for (at, value) in read_numbers(m, 3, of.len() * count)?.into_iter().enumerate() {
            self.parameters[at % count].1[of[at / count] as usize] = value;
        }
        Ok(())
    }

    /// Process the server's last message: an error, the end of training, or a bye.
    fn farewell(&mut self, kind: u64, m: &Message) -> Error {
        let Some(text) = m.text(if kind == 4 { 2 } else { 1 }) else {
            return self.mistake(MALFORMED, "a text is not valid UTF-8");
        };
        let (code, after) = if kind == 4 { (m.integer(1), m.double(4)) } else { (0, 0.0) };
        if !(after >= 0.0 && after.is_finite()) {
            return self.mistake(VALUE, &format!("an error has retry_after_seconds {after}"));
        }
        self.hang_up();
        if kind == 5 {
            let end = Error::Finished { global_step: m.integer(2), sentence: format!("training has finished: {text}") };
            self.end = Some(end.clone());
            return end;
        }
        if kind == BYE {
            return self.interrupted(0, format!("the server sent bye: {text}"));
        }
        let sentence = if text.is_empty() { format!("error {code}") } else { text };
        if m.integer(3) == 0 {
            return Error::Failed { code, sentence };
        }
        self.retry_after = after.min(1e9);
        self.interrupted(code, sentence)
    }

    fn open(&self, address: &str) -> std::io::Result<TcpStream> {
        let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "no such host");
        for to in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&to, Duration::from_secs(10)) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The bounds of observations are left out if the hello would be too long (section 6).
    fn hello(&self, bounds: bool) -> Part {
        let g = &self.config;
        let hello = Part::default().integer(1, 1).text(2, "relaax-rust").text(3, env!("CARGO_PKG_VERSION"));
        let hello = hello.text(4, &g.token).text(5, &g.environment).text(6, &g.host).integer(7, g.frame_skip.into());
        let hello = hello.space(8, &g.observation, bounds).space(9, &g.action, true).integer(10, g.environments as u64);
        let hello = hello.packed(11, g.autoreset.iter().map(|habit| *habit as u64)).integer(12, g.mode as u64);
        let hello = hello.text(13, &self.session).integer(14, g.reports_episodes.into());
        let hello = (15..).zip(g.needs()).fold(hello, |hello, (field, needed)| hello.integer(field, needed.into()));
        if bounds && hello.0.len() > HANDSHAKE_BYTES - 4 {
            return self.hello(false);
        }
        hello
    }

    /// Connect to the current address once.
    fn attempt(&mut self) -> Result<(), Error> {
        let address = self.place().to_owned();
        let hello = self.hello(true);
        let size = hello.0.len();
        if size > HANDSHAKE_BYTES - 4 {
            return invalid(format!("a hello of {size} bytes; the limit is 64 KiB: use one bound for all elements"));
        }
        (self.limit, self.answered) = (HANDSHAKE_BYTES, false);
        match self.open(&address) {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => {
                let sentence = format!("cannot connect to {address}: {error}: is an RLX server running there?");
                return Err(self.interrupted(0, sentence));
            }
        }
        self.send(HELLO, &hello)?;
        if self.config.environment_parameters {
            self.limit += 2048 * self.config.environments;
        }
        if let Answer::Welcome(granted) = self.hear(WELCOME)? {
            let needs = self.config.needs();
            if let Some(i) = (0..3).find(|&i| needs[i] && !granted[i]) {
                let (name, what) = CAPABILITIES[i];
                self.say_bye(&format!("the welcome lacks {name}"));
                let why = format!("the server or its algorithm does not support {what}");
                let sentence = format!("{address}: {why}: use another algorithm, or do not set {name}");
                return Err(Error::Failed { code: SPACE, sentence });
            }
        }
        if let Some(stream) = &self.stream {
            let _ = stream.set_read_timeout(Some(self.silence));
        }
        Ok(())
    }

    /// Wait before the next attempt, longer after each failure. Returns false if the client must give up.
    fn back_off(&mut self, reason: &str) -> bool {
        let chance = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        let wait = (0.5 * 2f64.powi(self.failures.min(6))).min(30.0) * (0.5 + chance / 2.0);
        let wait = Duration::from_secs_f64(wait.max(self.retry_after * (1.0 + chance / 5.0)));
        if self.failures == 0 {
            self.since = Instant::now();
        }
        self.retry_after = 0.0;
        if self.since.elapsed() + wait > self.config.retry {
            self.failures = 0;
            return false;
        }
        self.failures += 1;
        self.address += 1;
        (self.config.on_retry)(reason, wait);
        sleep(wait);
        true
    }

    /// Connect now. Otherwise the first `init` connects.
    pub fn connect(&mut self) -> Result<(), Error> {
        while self.stream.is_none() {
            if let Some(end) = &self.end {
                return Err(end.clone());
            }
            if let Some(Error::Interrupted { code, sentence }) = self.lost.take() {
                if !self.back_off(&sentence) {
                    return Err(Error::Failed { code, sentence });
                }
            }
            match self.attempt() {
                Ok(()) | Err(Error::Interrupted { .. }) => {}
                Err(error) => {
                    self.hang_up();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, kind: u64, content: &Part, due: u64) -> Result<Answer, Error> {
        self.send(kind, content)?;
        let answer = self.hear(due)?;
        (self.answered, self.failures, self.playing) = (true, 0, due == ACTIONS);
        Ok(answer)
    }

    /// Check a batch of observations, or of actions (`acting`), without its void rows.
    fn fit(&self, leaves: &Leaves, acting: bool, live: impl Fn(usize) -> bool) -> Result<(), Error> {
        let (space, what) = if acting { (&self.action, "action") } else { (&self.observation, "observation") };
        let (n, due) = (leaves.len(), space.len());
        if n != due {
            return invalid(format!("an {what} has {n} leaves; the space has {due}"));
        }
        let rows: Vec<bool> = (0..self.config.environments).map(live).collect();
        let rows = rows.contains(&false).then_some(&rows[..]);
        let legal = |(leaf, data): (&Leaf, &Vec<u8>)| leaf.legal(data, self.config.environments, rows, acting);
        match space.iter().zip(leaves).position(|pair| !legal(pair)) {
            Some(i) => invalid(format!(
                "leaf {i} of the {what} has a wrong size, or a value that is NaN, infinite or outside the space"
            )),
            None => Ok(()),
        }
    }

    /// Check the lengths of masks, and whether the capabilities of the first two are set.
    fn masks(&self, idle: &[bool], chosen: &[bool], masks: &[&[bool]]) -> Result<(), Error> {
        let (g, n) = (&self.config, self.config.environments);
        let marks =
            [("idle", idle, "out_of_step", g.out_of_step), ("chosen", chosen, "chosen_actions", g.chosen_actions)];
        for (name, mask, flag, set) in marks {
            if let Some(i) = mask.iter().position(|one| *one && !set) {
                return invalid(format!("{name} marks environment {i}: set {flag} in the configuration"));
            }
        }
        match masks.iter().chain([&idle, &chosen]).find(|mask| !mask.is_empty() && mask.len() != n) {
            Some(mask) => invalid(format!("a mask has {} entries; there are {n} environments", mask.len())),
            None => Ok(()),
        }
    }

    /// Begin an episode in every environment and return the first actions. `partial`: empty, or true where an episode continues.
    pub fn init(&mut self, observation: &Leaves, partial: &[bool]) -> Result<Leaves, Error> {
        self.init_idle(observation, partial, &[])
    }

    /// As `init`, with `out_of_step`. `idle`: empty, or true where no episode begins yet; the observation is ignored there.
    pub fn init_idle(&mut self, observation: &Leaves, partial: &[bool], idle: &[bool]) -> Result<Leaves, Error> {
        if self.playing {
            return invalid("an episode is in progress: call reset first");
        }
        self.masks(idle, &[], &[partial])?;
        let n = self.config.environments;
        self.fit(observation, false, |i| !on(idle, i))?;
        let all = vec![true; n];
        loop {
            self.connect()?;
            // An episode that began without the parameters of this connection is partial.
            let partial = if self.informed || self.parameters.is_empty() { partial } else { &all };
            let content = Part::default().leaves(1, &self.observation, observation, n).mask(2, partial).mask(3, idle);
            let answer = self.look_around().and_then(|()| self.ask(INIT, &content, ACTIONS));
            match answer {
                Ok(Answer::Actions(actions)) => {
                    self.between = (0..n).map(|i| on(idle, i)).collect();
                    return Ok(actions);
                }
                Err(Error::Interrupted { .. }) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Check an outcome. Returns which episodes end and which of these are truncated.
    fn check(&self, o: &Outcome, stepping: bool) -> Result<(Vec<bool>, Vec<bool>), Error> {
        let n = self.config.environments;
        if self.stream.is_none() {
            let lost =
                Error::Interrupted { code: 0, sentence: "the connection is lost: call init to reconnect".into() };
            return Err(self.end.clone().unwrap_or(lost));
        }
        if !self.playing {
            return invalid("no episode is in progress: call init first");
        }
        self.masks(&o.idle, &o.chosen, &[&o.terminated, &o.truncated])?;
        if o.reward.len() != n {
            return invalid(format!("{} rewards; there are {n} environments", o.reward.len()));
        }
        let (mut ended, mut cut, mut needed, mut allowed) = (vec![false; n], vec![false; n], false, !stepping);
        for i in 0..n {
            let over = stepping && on(&o.terminated, i);
            cut[i] = on(&o.truncated, i) && !over && (stepping || !self.between[i]);
            ended[i] = over || cut[i];
            if !(o.reward[i].abs() <= 1e15) {
                return invalid(format!(
                    "the reward of environment {i} is {}; it must be from -1e15 to 1e15",
                    o.reward[i]
                ));
            }
            if stepping && ended[i] && (self.habit(i) == Autoreset::Disabled || self.between[i]) {
                return invalid(format!("the episode of environment {i} cannot end in this step"));
            }
            if on(&o.chosen, i) && (self.between[i] || stepping && on(&o.idle, i) && !ended[i]) {
                return invalid(format!("chosen marks environment {i}, which took no action"));
            }
            needed |= cut[i] && (!stepping || self.habit(i) == Autoreset::SameStep);
            allowed |= ended[i] && self.habit(i) == Autoreset::SameStep;
        }
        if needed && o.final_observation.is_empty() {
            return invalid("a truncated episode needs its final observation");
        }
        if !o.final_observation.is_empty() {
            if !allowed {
                return invalid("a final observation was given, but no episode ended");
            }
            let same = |i| !stepping || ended[i] && self.habit(i) == Autoreset::SameStep;
            self.fit(&o.final_observation, false, same)?;
        }
        if o.chosen.contains(&true) {
            self.fit(&o.action, true, |i| o.chosen[i])?;
        }
        if o.episodes.len() > if self.config.reports_episodes { n } else { 0 } {
            return invalid("episodes without reports_episodes, or too many");
        }
        if o.episodes.iter().any(|e| e.environment >= n || e.length < 1 || !(e.episode_return.abs() <= 1e30)) {
            return invalid("an episode with an invalid environment, length or return");
        }
        if stepping {
            let live = |i| !on(&o.idle, i) || ended[i] && self.habit(i) == Autoreset::NextStep;
            self.fit(&o.observation, false, live)?;
        }
        Ok((ended, cut))
    }

    /// Send an outcome and return the next actions. The client sets `first` where an environment was between two episodes
    /// (NEXT_STEP, or idle): its reward is void.
    pub fn step(&mut self, o: &Outcome) -> Result<Leaves, Error> {
        let (ended, cut) = self.check(o, true)?;
        self.look_around()?;
        let n = self.config.environments;
        let content = Part::default().doubles(1, &o.reward).leaves(2, &self.observation, &o.observation, n);
        let first: Vec<bool> = (0..n).map(|i| self.between[i] && !on(&o.idle, i)).collect();
        let content = content.mask(3, &o.terminated).mask(4, &cut);
        let content = content.leaves(5, &self.observation, &o.final_observation, n).mask(6, &first);
        let content = episodes(content, 7, &o.episodes).mask(8, &o.idle);
        match self.ask(STEP, &self.chosen(content, 9, o), ACTIONS)? {
            Answer::Actions(actions) => {
                let leaves = |i| ended[i] && (on(&o.idle, i) || self.habit(i) == Autoreset::NextStep);
                self.between = (0..n).map(|i| leaves(i) || self.between[i] && on(&o.idle, i)).collect();
                Ok(actions)
            }
            _ => invalid("no actions"),
        }
    }

    /// End the episode of every environment and return their returns.
    pub fn reset(&mut self, o: &Outcome) -> Result<Vec<f64>, Error> {
        let (_, cut) = self.check(o, false)?;
        self.look_around()?;
        let content = Part::default().doubles(1, &o.reward).mask(2, &cut);
        let content = content.leaves(3, &self.observation, &o.final_observation, self.config.environments);
        match self.ask(RESET, &self.chosen(episodes(content, 4, &o.episodes), 5, o), RETURNS)? {
            Answer::Returns(returns) => Ok(returns),
            _ => invalid("no returns"),
        }
    }

    /// Add the actions that the client chose, if there are any.
    fn chosen(&self, part: Part, field: u64, o: &Outcome) -> Part {
        let action = if o.chosen.contains(&true) { &o.action[..] } else { &[] };
        part.mask(field, &o.chosen).leaves(field + 1, &self.action, action, self.config.environments)
    }

    /// Return the server's parameters for the next episode of each environment, with `environment_parameters`. Read them
    /// before an environment begins an episode. Connects if there is no connection.
    pub fn parameters(&mut self) -> Result<Parameters, Error> {
        if !self.config.environment_parameters {
            return invalid("to read parameters, set environment_parameters in the configuration");
        }
        self.connect()?;
        self.informed = true;
        Ok(self.parameters.clone())
    }

    /// Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns false if it is dropped: there
    /// is no connection, or it exceeds the server's limits.
    pub fn metric(&mut self, name: &str, value: f64) -> Result<bool, Error> {
        if name.is_empty() || !(value.abs() <= 1e30) {
            return invalid("a metric needs a name and a value from -1e30 to 1e30");
        }
        let good = |(i, c): (usize, char)| c.is_ascii_alphanumeric() || "_-.".contains(c) || (c == '/' && i > 0);
        let form = |at: (usize, char)| if good(at) { at.1 } else { '_' };
        let name: String = name.char_indices().map(form).collect();
        let (bytes, count) = self.name_limits;
        let new = !self.names.contains(&name);
        if self.stream.is_none()
            || name.len() as u64 > bytes
            || (new && self.names.len() as u64 >= count)
            || self.scalars.len() > 1 << 16
        {
            return Ok(false);
        }
        let scalar = Part::default().text(1, &name).double(2, value);
        self.scalars.extend(Part::default().bytes(1, &scalar.0).frame(METRICS));
        self.names.insert(name);
        Ok(true)
    }

    /// Send a ping, for environments that are slower than the server's idle timeout.
    pub fn alive(&mut self) -> Result<(), Error> {
        self.send(PING, &Part::default().integer(1, 1))?;
        self.hear(PONG).map(|_| ())
    }

    /// Send bye and disconnect. Dropping a client does the same.
    pub fn close(&mut self) {
        if self.stream.is_some() && self.send(BYE, &Part::default()).is_ok() {
            if let Some(mut stream) = self.stream.take() {
                let (until, mut rest) = (Instant::now() + Duration::from_secs(1), [0; 4096]);
                let _ = stream
                    .shutdown(Shutdown::Write)
                    .and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(500))));
                while Instant::now() < until && stream.read(&mut rest).map_or(false, |size| size > 0) {}
            }
        }
        self.hang_up();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// An entry of a mask, which is empty if all are false.
fn on(mask: &[bool], i: usize) -> bool {
    !mask.is_empty() && mask[i]
}

fn episodes(part: Part, field: u64, episodes: &[Episode]) -> Part {
    episodes.iter().fold(part, |all, e| {
        let one = Part::default().integer(1, e.environment as u64).double(2, e.episode_return);
        all.bytes(field, &one.integer(3, e.length.into()).0)
    })
}
