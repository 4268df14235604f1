//! Figures of a measurement: a table for the reader, and a file in JSON.

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::{env, fs, process::Command, thread, time::Duration};

use serde_json::{Map, Value, json};

/// Figures in the order in which they were measured, and what was not as promised.
#[derive(Debug, Default)]
pub(crate) struct Report {
    title: String,
    phases: Vec<(String, Vec<Figure>)>,
    failures: Vec<String>,
}

#[derive(Debug)]
struct Figure {
    key: &'static str,
    what: &'static str,
    value: Value,
}

impl Report {
    pub(crate) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            ..Self::default()
        }
    }

    /// Begins a phase, to which the following figures belong. `name` is its key in the file.
    pub(crate) fn phase(&mut self, name: &str) {
        println!("{name}");
        self.phases.push((name.to_owned(), Vec::new()));
    }

    /// Adds a figure. `key`: its name in the file; `what`: its name in the table.
    pub(crate) fn put(&mut self, key: &'static str, what: &'static str, value: impl Into<Value>) {
        let figure = Figure {
            key,
            what,
            value: value.into(),
        };
        println!("  {what}: {}", figure.value);
        if let Some((_, figures)) = self.phases.last_mut() {
            figures.push(figure);
        }
    }

    /// Adds a time in seconds; `None`: it did not happen, which is a failure.
    pub(crate) fn put_time(
        &mut self,
        key: &'static str,
        what: &'static str,
        time: Option<Duration>,
    ) {
        self.put(key, what, time.map(seconds));
        self.require(time.is_some(), what);
    }

    /// Notes a failure unless `holds`.
    pub(crate) fn require(&mut self, holds: bool, what: &str) {
        if !holds {
            let phase = self.phases.last().map_or("", |(name, _)| name);
            println!("  FAILED: {what}");
            self.failures.push(format!("{phase}: {what}"));
        }
    }

    /// Prints the table, and writes the file that the environment variable PLEACH_BENCH_JSON names.
    pub(crate) fn publish(&self) {
        let origin = origin();
        println!("\n{}", self.title);
        for (key, value) in &origin {
            println!("{key}: {}", value.as_str().unwrap_or_default());
        }
        let mut all = Map::new();
        for (name, figures) in &self.phases {
            println!("\n| {name} | |\n| --- | --- |");
            for figure in figures {
                println!("| {} | {} |", figure.what, figure.value);
            }
            let figures = figures.iter();
            let values: Map<String, Value> = figures
                .map(|figure| (figure.key.to_owned(), figure.value.clone()))
                .collect();
            all.insert(name.clone(), values.into());
        }
        let text = json!({
            "title": self.title, "origin": origin, "phases": all, "failures": self.failures,
        });
        if let Some(file) = env::var_os("PLEACH_BENCH_JSON") {
            fs::write(&file, format!("{text:#}\n")).expect("the file is writable");
            println!("\nfigures: {}", file.display());
        }
    }

    /// Panics if something was not as promised.
    pub(crate) fn check(&self) {
        assert!(self.failures.is_empty(), "{:#?}", self.failures);
    }
}

/// Returns a number from an environment variable.
pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = env::var(variable) else {
        return otherwise;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{variable}={text}: write a number"))
}

/// Returns a time in seconds, in milliseconds exactly.
#[expect(
    clippy::cast_precision_loss,
    reason = "minutes in milliseconds are exact"
)]
pub(crate) fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

/// Returns median, 99th percentile and maximum.
pub(crate) fn quantiles(mut times: Vec<Duration>) -> [Option<Duration>; 3] {
    times.sort();
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).copied()
    };
    [at(50), at(99), at(100)]
}

/// The processors' time since the start of the machine, in ticks.
pub(crate) struct Load {
    busy: u64,
    all: u64,
}

impl Load {
    pub(crate) fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|text| text.parse().ok()).collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self {
            busy: all - idle,
            all,
        }
    }

    /// Returns how busy all processors of the machine were since then, in percent.
    pub(crate) fn percent(&self) -> u64 {
        let now = Self::now();
        (now.busy - self.busy) * 100 / (now.all - self.all).max(1)
    }
}

/// Returns the memory of a process, in kB.
pub(crate) fn memory_kb(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns commit, date and machine.
fn origin() -> Map<String, Value> {
    let ask = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    let find = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let commit = ["describe", "--always", "--dirty", "--abbrev=12", "--match="];
    let machine = format!(
        "{}, {} cores, {} of memory, Linux {}",
        find("/proc/cpuinfo", "model name"),
        thread::available_parallelism().map_or(1, usize::from),
        find("/proc/meminfo", "MemTotal"),
        ask("uname", &["-r"])
    );
    let build = if cfg!(debug_assertions) {
        "unoptimised"
    } else {
        "optimised"
    };
    [
        ("commit", ask("git", &commit)),
        ("date", ask("date", &["-u", "+%Y-%m-%d"])),
        ("machine", machine),
        ("build", build.to_owned()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.into()))
    .collect()
}
