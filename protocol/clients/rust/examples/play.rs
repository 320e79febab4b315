//! Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.

use rlx::{bytes, Autoreset, Client, Config, Dtype, Episode, Error, Leaves, Mode, Outcome, Space};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

struct Line<'a>(std::iter::Peekable<std::str::SplitWhitespace<'a>>);

impl Line<'_> {
    fn word(&mut self) -> String {
        self.0.next().expect("a word").into()
    }

    fn integer(&mut self) -> i64 {
        self.word().parse().expect("an integer")
    }

    fn bytes(&mut self) -> Vec<u8> {
        let word = self.word();
        let digits = if word == "-" { "" } else { &word };
        (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hexadecimal")).collect()
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("UTF-8")
    }

    fn number(&mut self) -> f64 {
        number(&self.word())
    }

    fn many<T>(&mut self, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.integer()).map(|_| one(self)).collect()
    }

    fn shape(&mut self) -> Vec<u32> {
        self.many(|line| line.integer() as u32)
    }

    fn space(&mut self) -> Space {
        match self.word().as_str() {
            "box" => {
                let dtype = dtype(self.integer());
                let shape = self.shape();
                let low = self.many(Self::number);
                Space::Box { dtype, shape, low, high: self.many(Self::number) }
            }
            "discrete" => Space::Discrete { n: self.integer(), start: self.integer() },
            "multi_discrete" => Space::MultiDiscrete(self.many(Self::integer)),
            "multi_binary" => Space::MultiBinary(self.shape()),
            "tuple" => Space::Tuple(self.many(Self::space)),
            _ => Space::Dict(self.many(|line| (line.text(), line.space())).into_iter().collect::<BTreeMap<_, _>>()),
        }
    }

    fn mask(&mut self) -> Vec<bool> {
        let word = self.word();
        if word == "-" {
            vec![]
        } else {
            word.chars().map(|c| c == '1').collect()
        }
    }

    /// `n` leaves, or those up to the end of the line.
    fn leaves(&mut self, n: usize) -> Leaves {
        (0..n).filter_map(|_| self.0.peek().is_some().then(|| self.bytes())).collect()
    }

    /// `leaves`: the numbers of leaves of an observation and of an action.
    fn outcome(&mut self, leaves: (usize, usize), stepping: bool) -> Outcome {
        let mut o = Outcome { reward: self.many(Self::number), ..Outcome::default() };
        if stepping {
            o.terminated = self.mask();
        }
        o.truncated = self.mask();
        if stepping {
            o.idle = self.mask();
        }
        o.chosen = self.mask();
        for one in self.word().split(',').filter(|one| *one != "-") {
            let parts: Vec<&str> = one.split(':').collect();
            let (environment, length) = (parts[0].parse().expect("an index"), parts[2].parse().expect("a length"));
            o.episodes.push(Episode { environment, episode_return: number(parts[1]), length });
        }
        if stepping {
            o.observation = self.leaves(leaves.0);
        }
        o.final_observation = self.leaves(512);
        if !o.chosen.is_empty() {
            o.action = o.final_observation.split_off(o.final_observation.len() - leaves.1);
        }
        o
    }
}

fn number(bits: &str) -> f64 {
    f64::from_bits(u64::from_str_radix(bits, 16).expect("16 hexadecimal digits"))
}

fn dtype(number: i64) -> Dtype {
    use Dtype::*;
    [Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Float16, Float32, Float64][number as usize - 1]
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn connect(line: &mut Line) -> Result<Client, Error> {
    let address = line.word();
    let (environments, mode) = (line.integer() as usize, line.integer());
    let (frame_skip, reports) = (line.integer() as u32, line.integer() != 0);
    let [out_of_step, chosen_actions, environment_parameters] = [(); 3].map(|()| line.integer() != 0);
    let habits =
        line.many(|line| [Autoreset::Disabled, Autoreset::SameStep, Autoreset::NextStep][line.integer() as usize - 1]);
    let [environment, host, token, session_id] = [(); 4].map(|()| line.text());
    let observation = line.space();
    let mut config = Config::new(&address, observation, line.space());
    config.mode = if mode == 1 { Mode::Train } else { Mode::Exploit };
    (config.environments, config.frame_skip, config.reports_episodes) = (environments, frame_skip, reports);
    (config.autoreset, config.environment, config.host) = (habits, environment, host);
    (config.out_of_step, config.chosen_actions) = (out_of_step, chosen_actions);
    config.environment_parameters = environment_parameters;
    (config.token, config.session_id, config.retry) = (token, session_id, Duration::ZERO);
    let mut client = Client::new(config)?;
    client.connect()?;
    println!("welcome {} {}", hex(client.session().as_bytes()), hex(client.algorithm().as_bytes()));
    print_parameters(&mut client);
    Ok(client)
}

/// Print the parameters, if the client has asked for them.
fn print_parameters(client: &mut Client) {
    if let Ok(parameters) = client.parameters() {
        let words = parameters.iter().map(|(name, values)| format!(" {} {}", hex(name.as_bytes()), doubles(values)));
        println!("parameters{}", words.collect::<String>());
    }
}

fn doubles(numbers: &[f64]) -> String {
    numbers.iter().map(|one| hex(&bytes(&[*one]))).collect::<Vec<_>>().join(" ")
}

fn perform(client: &mut Option<Client>, leaves: &mut (usize, usize), line: &mut Line) -> Result<(), Error> {
    let command = line.word();
    if command == "connect" {
        *client = Some(connect(line)?);
        return Ok(());
    }
    let client = client.as_mut().expect("a client");
    match command.as_str() {
        "metric" => {
            let name = line.text();
            client.metric(&name, line.number())?;
        }
        "ping" => {
            client.alive()?;
            println!("pong");
        }
        "reset" => {
            let returns = client.reset(&line.outcome(*leaves, false))?;
            println!("returns {}", doubles(&returns));
        }
        _ => {
            let actions = if command == "step" {
                client.step(&line.outcome(*leaves, true))?
            } else {
                let (partial, idle) = (line.mask(), line.mask());
                let observation = line.leaves(256);
                leaves.0 = observation.len();
                client.init_idle(&observation, &partial, &idle)?
            };
            leaves.1 = actions.len();
            println!("actions {}", actions.iter().map(|leaf| hex(leaf)).collect::<Vec<_>>().join(" "));
            print_parameters(client);
        }
    }
    Ok(())
}

fn main() {
    let (mut client, mut leaves) = (None, (0, 0));
    let mut over = false; // after a connection has ended, other commands are skipped
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        if line == "end" {
            (client, over) = (None, false);
            println!("end");
            continue;
        }
        if over {
            continue;
        }
        match perform(&mut client, &mut leaves, &mut Line(line.split_whitespace().peekable())) {
            Ok(()) => continue,
            Err(Error::Invalid { sentence }) => {
                println!("invalid 8 {sentence}");
                continue;
            }
            Err(Error::Finished { global_step, sentence }) => println!("finished {global_step} {sentence}"),
            Err(Error::Failed { code, sentence } | Error::Interrupted { code, sentence }) => {
                println!("lost {code} {sentence}");
            }
        }
        over = true;
    }
}
