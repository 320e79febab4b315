//! CartPole as an RLX client:
//!   cartpole HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
//!            [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE]

use rlx::{bytes, values, Autoreset, Client, Config, Dtype, Error, Leaves, Mode, Outcome, Space};

/// Repeatable random numbers in [0, 1) (splitmix64).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

#[derive(Clone, Copy)]
struct CartPole {
    /// Position, speed, angle, turning.
    state: [f64; 4],
    steps: u32,
}

impl CartPole {
    fn new(random: &mut Random) -> CartPole {
        CartPole { state: [0; 4].map(|_| 0.1 * random.draw() - 0.05), steps: 0 }
    }

    /// One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1.
    /// Returns whether the episode was terminated, and whether truncated.
    fn step(&mut self, action: i64) -> (bool, bool) {
        let [x, speed, angle, turning] = self.state;
        let (sine, cosine) = angle.sin_cos();
        let push = (if action == 1 { 10.0 } else { -10.0 } + 0.05 * turning * turning * sine) / 1.1;
        let twist = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
        let acceleration = push - 0.05 * twist * cosine / 1.1;
        self.state = [x + 0.02 * speed, speed + 0.02 * acceleration, angle + 0.02 * turning, turning + 0.02 * twist];
        self.steps += 1;
        let terminated = self.state[0].abs() > 2.4 || self.state[2].abs() > 12f64.to_radians();
        (terminated, self.steps >= 500 && !terminated)
    }
}

fn leaf(poles: &[CartPole]) -> Leaves {
    vec![bytes(&poles.iter().flat_map(|pole| pole.state.map(|v| v as f32)).collect::<Vec<f32>>())]
}

struct Player {
    client: Client,
    autoreset: Autoreset,
    random: Random,
    environments: usize,
    wanted: u64,
    episodes: u64,
    total: f64,
}

impl Player {
    /// Play until enough episodes have ended. An error ends it earlier.
    fn play(&mut self) -> Result<(), Error> {
        let n = self.environments;
        let mut poles: Vec<CartPole> = (0..n).map(|_| CartPole::new(&mut self.random)).collect();
        let mut ended = vec![false; n];
        let mut actions = self.client.init(&leaf(&poles), &[])?;
        while self.wanted == 0 || self.episodes < self.wanted {
            let mut o = Outcome { reward: vec![1.0; n], terminated: vec![false; n], ..Outcome::default() };
            o.truncated = vec![false; n];
            let mut last = poles.clone();
            let mut any = false;
            for (i, action) in values::<i64>(&actions[0]).into_iter().enumerate() {
                if std::mem::take(&mut ended[i]) {
                    poles[i] = CartPole::new(&mut self.random); // NEXT_STEP: this step only begins an episode
                    o.reward[i] = 0.0;
                    continue;
                }
                (o.terminated[i], o.truncated[i]) = poles[i].step(action);
                last[i] = poles[i];
                if !o.terminated[i] && !o.truncated[i] {
                    continue;
                }
                any = true;
                self.episodes += 1;
                self.total += f64::from(poles[i].steps);
                self.client.metric("episode/length", f64::from(poles[i].steps))?;
                match self.autoreset {
                    Autoreset::NextStep => ended[i] = true,
                    Autoreset::SameStep => poles[i] = CartPole::new(&mut self.random),
                    Autoreset::Disabled => {}
                }
            }
            if any && self.autoreset == Autoreset::Disabled {
                o.truncated = o.terminated.iter().map(|over| !over).collect(); // all episodes end together
                o.final_observation = leaf(&last);
                self.client.reset(&o)?;
                poles = (0..n).map(|_| CartPole::new(&mut self.random)).collect();
                actions = self.client.init(&leaf(&poles), &[])?;
                continue;
            }
            if any && self.autoreset == Autoreset::SameStep {
                o.final_observation = leaf(&last);
            }
            o.observation = leaf(&poles);
            actions = self.client.step(&o)?;
        }
        Ok(())
    }
}

fn player() -> Result<Player, String> {
    let mut words = std::env::args().skip(1);
    let address = words.next().ok_or("the address HOST:PORT is missing")?;
    let mut config = Config::new(&address, Space::unbounded(Dtype::Float32, &[4]), Space::discrete(2));
    let (mut autoreset, mut wanted, mut seed) = (Autoreset::SameStep, 0, u64::from(std::process::id()));
    config.environment = "CartPole".into();
    config.host = std::fs::read_to_string("/etc/hostname").unwrap_or_default().trim().into();
    while let Some(option) = words.next() {
        let value = words.next().ok_or(format!("{option} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{option} {value}: not a number"));
        match (option.as_str(), value.as_str()) {
            ("--environments", _) => config.environments = number()? as usize,
            ("--episodes", _) => wanted = number()?,
            ("--seed", _) => seed = number()?,
            ("--mode", "exploit") => config.mode = Mode::Exploit,
            ("--mode", "train") => config.mode = Mode::Train,
            ("--autoreset", "disabled") => autoreset = Autoreset::Disabled,
            ("--autoreset", "same_step") => autoreset = Autoreset::SameStep,
            ("--autoreset", "next_step") => autoreset = Autoreset::NextStep,
            ("--token-file", file) => {
                config.token = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?.trim().into();
            }
            _ => return Err(format!("{option} {value}: unknown")),
        }
    }
    config.autoreset = vec![autoreset];
    let environments = config.environments;
    let client = Client::new(config).map_err(|error| error.to_string())?;
    Ok(Player { client, autoreset, random: Random(seed), environments, wanted, episodes: 0, total: 0.0 })
}

fn main() {
    let mut player = player().unwrap_or_else(|sentence| {
        eprintln!("{sentence}");
        std::process::exit(2);
    });
    let mut end = player.play();
    while let Err(Error::Interrupted { .. }) = end {
        end = player.play(); // interrupted: new episodes, a new connection
    }
    if player.episodes > 0 {
        println!("mean of {} episodes: {:.2}", player.episodes, player.total / player.episodes as f64);
    }
    player.client.close();
    match end {
        Ok(()) => {}
        Err(Error::Finished { .. }) => println!("training has finished"),
        Err(error) => {
            eprintln!("{error}");
            let hopeless = matches!(error, Error::Failed { code: 4..=7, .. });
            std::process::exit(if hopeless { 2 } else { 1 });
        }
    }
}
