//! Tests `pleach sim sweep` and `pleach sim merge`: the same rows for any division of the cases and after an
//! interruption, and one line for each kind of bad input.
#![cfg(feature = "sim")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use pleach_linux::clock;
use pleach_sim::sweep::Row;
use tempfile::TempDir;

const BASE: &str = r#"name = "short"
duration = "2s"
[[link]]
name = "dsl"
rate = "4Mbit"
delay = "7ms"
[[link]]
name = "lte"
rate = "3Mbit"
delay = "18ms"
[tunnel]
policy = "min-rtt"
[[traffic]]
kind = "tcp"
name = "download"
[[traffic]]
kind = "ping"
name = "ping"
"#;

/// 24 cases.
const SWEEP: &str = r#"name = "small"
base = "base.toml"
warm_up = "500ms"
draws = 6
[vary]
link.dsl.rate = { draw = "log", from = "1Mbit", to = "8Mbit" }
link.dsl.queue = { draw = "uniform", from = "0.5bdp", to = "2bdp" }
link.lte.loss = { draw = "log", from = 0.001, to = 0.02, chance = 0.5 }
seed = [1, 2]
tunnel.policy = ["min-rtt", "weighted"]
"#;

/// A directory with a sweep file and its base scenario.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().expect("temporary directory"));
        fs::write(files.path("base.toml"), BASE).expect("write");
        fs::write(files.path("sweep.toml"), SWEEP).expect("write");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command
            .arg("sim")
            .args(args)
            .current_dir(self.0.path())
            .env_remove("RUST_LOG");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program runs")
    }

    /// Runs a command that succeeds, and returns its stderr.
    #[track_caller]
    fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{args:?}: {errors}");
        errors
    }

    /// Runs a command that fails with exit code `code`, and returns its stderr.
    #[track_caller]
    fn refuse(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        errors
    }

    /// As [`Self::refuse`], with a single line on stderr.
    #[track_caller]
    fn fail(&self, code: i32, args: &[&str]) -> String {
        let errors = self.refuse(code, args);
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
        errors
    }

    /// Merges the shards of `dir`, and returns the rows and the table.
    #[track_caller]
    fn merged(&self, dir: &str) -> (Vec<u8>, Vec<u8>) {
        self.succeed(&["merge", dir, "--out", "rows.jsonl", "--csv", "rows.csv"]);
        let read = |name| fs::read(self.path(name)).expect("written");
        (read("rows.jsonl"), read("rows.csv"))
    }
}

fn lines(path: &Path) -> usize {
    let content = fs::read(path).unwrap_or_default();
    content.iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn merged_rows_do_not_depend_on_shards_jobs_or_interruptions() {
    let files = Files::new();
    files.succeed(&["sweep", "sweep.toml", "--out", "one", "--jobs", "1"]);
    let (rows, table) = files.merged("one");
    let text = String::from_utf8(rows.clone()).expect("text");
    let parsed = text.lines().map(|line| Row::parse(1, line).expect("a row"));
    let parsed: Vec<Row> = parsed.collect();
    assert_eq!(parsed.len(), 24);
    for (number, row) in (0..).zip(&parsed) {
        assert_eq!((row.case, row.error.as_deref()), (number, None));
        let share = row.share_of_best.expect("measured");
        assert!((0.1..3.0).contains(&share), "{row:?}");
        assert!(
            row.delay_ms.p95.is_some_and(|delay| delay > 14.0),
            "{row:?}"
        );
        assert!(row.loss.is_some(), "the ping counts its packets");
    }
    assert_eq!(table.iter().filter(|byte| **byte == b'\n').count(), 25);

    for shard in ["1/2", "2/2"] {
        let args = ["sweep", "sweep.toml", "--out", "two", "--shard", shard];
        files.succeed(&[&args[..], &["--jobs", "3"]].concat());
    }
    assert_eq!(files.merged("two"), (rows.clone(), table.clone()));

    // The second of four shards is killed after its second row, in the middle of the third.
    let second = ["sweep", "sweep.toml", "--out", "four", "--shard", "2/4"];
    let mut child = files
        .command(&[&second[..], &["--jobs", "1"]].concat())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let shard = files.path("four/shard-2-of-4.jsonl");
    let deadline = clock::now() + Duration::from_secs(120);
    while lines(&shard) < 2 && clock::now() < deadline {
        thread::park_timeout(Duration::from_millis(1));
    }
    let has_rows = lines(&shard) >= 2;
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert!(has_rows, "no row was written");
    let whole = fs::read(&shard).expect("rows");
    fs::write(&shard, &whole[..whole.len() - 40]).expect("write");
    let errors = files.refuse(1, &["merge", "four", "--out", "rows.jsonl"]);
    assert!(
        errors.contains("the last line is incomplete and is left out"),
        "{errors}"
    );
    assert!(
        errors.contains("of 24 cases are missing: 0-5, "),
        "{errors}"
    );
    for shard in ["1/4", "2/4", "3/4", "4/4"] {
        let notes = files.succeed(&["sweep", "sweep.toml", "--out", "four", "--shard", shard]);
        let was_cut = notes.contains("the last line is incomplete and was removed");
        assert_eq!(was_cut, shard == "2/4", "{notes}");
        let was_resumed = notes.contains("of 6 cases are already there");
        assert_eq!(was_resumed, shard == "2/4", "{notes}");
    }
    assert_eq!(files.merged("four"), (rows, table));
    // A complete shard is left as it is.
    let before = fs::read(&shard).expect("rows");
    let notes = files.succeed(&second);
    assert!(notes.contains("6 of 6 cases are already there"), "{notes}");
    assert_eq!(fs::read(&shard).expect("rows"), before);
}

#[test]
fn rows_of_other_sweeps_and_damaged_rows_are_refused() {
    let files = Files::new();
    let shard = ["sweep", "sweep.toml", "--out", "rows", "--shard", "1/12"];
    files.succeed(&shard);
    let path = files.path("rows/shard-1-of-12.jsonl");
    let good = fs::read_to_string(&path).expect("rows");

    // The sweep, or the base scenario, has changed.
    for (name, old, text) in [
        ("sweep.toml", "draws = 6", SWEEP),
        ("base.toml", "7ms", BASE),
    ] {
        let new = if name == "sweep.toml" {
            "draws = 5"
        } else {
            "8ms"
        };
        fs::write(files.path(name), text.replace(old, new)).expect("write");
        for other in [&shard[..], &[&shard[..5], &["2/12"]].concat()] {
            let error = files.fail(1, other);
            assert!(
                error.contains("shard-1-of-12.jsonl: has rows of sweep"),
                "{error}"
            );
            assert!(error.contains("choose another --out"), "{error}");
        }
        fs::write(files.path(name), text).expect("write");
    }
    // Another program: its rows have another hash.
    let first = Row::parse(1, good.lines().next().expect("a row")).expect("a row");
    fs::write(&path, good.replace(&first.id, "0123456789abcdef")).expect("write");
    let error = files.fail(1, &shard);
    assert!(
        error.contains("hash 0123456789abcdef, but this is"),
        "{error}"
    );
    fs::create_dir(files.path("good")).expect("a directory");
    let second = good
        .replace("\"case\":0", "\"case\":2")
        .replace("\"case\":1", "\"case\":3");
    fs::write(files.path("good/shard-2-of-12.jsonl"), &second).expect("write");
    let error = files.fail(1, &["merge", "rows", "good", "--out", "rows.jsonl"]);
    assert!(
        error.contains("merge only shards of one sweep file"),
        "{error}"
    );

    // A row of another shard, a damaged line, two different rows of a case.
    for (content, expected) in [
        (second, "shard-1-of-12.jsonl:1: case 2 is not in shard 1/12"),
        (
            good.replacen("\"case\"", "\"cas\"", 1),
            "shard-1-of-12.jsonl: line 1 is not a row of a sweep",
        ),
        (format!("\n{good}"), "line 1 is not a row of a sweep"),
    ] {
        fs::write(&path, content).expect("write");
        let error = files.fail(1, &shard);
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&path, &good).expect("write");
    let other = good.replace("\"seed\":1", "\"seed\":9");
    fs::write(files.path("good/shard-2-of-12.jsonl"), other).expect("write");
    let error = files.fail(1, &["merge", "rows", "good", "--out", "rows.jsonl"]);
    assert!(error.contains("the rows of case 0 differ"), "{error}");
    assert!(!files.path("rows.jsonl").exists());
}

#[test]
fn incomplete_lines_are_left_out_by_merge() {
    let files = Files::new();
    files.succeed(&["sweep", "sweep.toml", "--out", "rows", "--shard", "12/12"]);
    let path = files.path("rows/shard-12-of-12.jsonl");
    let good = fs::read(&path).expect("rows");
    fs::write(&path, &good[..good.len() - 1]).expect("write");
    let errors = files.refuse(1, &["merge", "rows", "--out", "rows.jsonl"]);
    assert!(
        errors.contains("the last line is incomplete and is left out"),
        "{errors}"
    );
    assert!(
        errors.contains("23 of 24 cases are missing: 0-21, 23;"),
        "{errors}"
    );
}

#[test]
fn a_second_process_waits_for_the_first_one() {
    let files = Files::new();
    fs::create_dir(files.path("rows")).expect("a directory");
    let held = fs::File::create(files.path("rows/shard-1-of-12.jsonl")).expect("a file");
    held.lock().expect("locked");
    let mut child = files
        .command(&["sweep", "sweep.toml", "--out", "rows", "--shard", "1/12"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
    let note = errors.next().expect("a note").expect("text");
    assert!(
        note.contains("another process is computing this shard"),
        "{note}"
    );
    assert_eq!(lines(&files.path("rows/shard-1-of-12.jsonl")), 0);
    drop(held);
    errors.for_each(drop);
    assert!(child.wait().expect("it ends").success());
    assert_eq!(lines(&files.path("rows/shard-1-of-12.jsonl")), 2);
}

#[test]
fn mistakes_on_the_command_line_and_in_files_are_one_line() {
    let files = Files::new();
    let shard = |text| {
        files.fail(
            2,
            &["sweep", "sweep.toml", "--out", "rows", "--shard", text],
        )
    };
    assert!(
        shard("5/4").contains("there is no shard 5 of 4"),
        "{}",
        shard("5/4")
    );
    assert!(shard("0/4").contains("there is no shard 0 of 4"));
    assert!(shard("1/0").contains("the number of shards is out of range"));
    assert!(shard("half").contains("expected I/N"));
    let run = ["sweep", "sweep.toml", "--out", "rows"];
    assert!(files.fail(2, &run[..2]).contains("--out"));
    for (from, to, expected) in [
        (
            "warm_up",
            "warmup",
            "sweep.toml:3: warmup: unknown field `warmup`; expected one of",
        ),
        (
            "link.lte.loss",
            "link.lte.los",
            "sweep.toml:8: link.lte.los: case ",
        ),
        (
            "\"weighted\"",
            "\"heavy\"",
            "sweep.toml:10: tunnel.policy: case 1 (",
        ),
        ("draws", "base", "sweep.toml:4: base: duplicate key"),
    ] {
        fs::write(files.path("sweep.toml"), SWEEP.replacen(from, to, 1)).expect("write");
        let error = files.fail(2, &run);
        assert!(error.contains(expected), "{error}");
    }
    fs::remove_file(files.path("sweep.toml")).expect("removed");
    assert!(files.fail(2, &run).contains("cannot read sweep.toml"));
    let merge = ["merge", "none", "--out", "rows.jsonl"];
    assert!(files.fail(1, &merge).contains("cannot read none"));
    fs::create_dir(files.path("none")).expect("a directory");
    assert!(
        files
            .fail(1, &merge)
            .contains("none: there is no shard file")
    );
}

#[test]
fn cases_and_files_are_listed_without_simulation() {
    let files = Files::new();
    let listed = |args: &[&str]| {
        let output = files.run(&[&["sweep", "sweep.toml"], args].concat());
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(listed(&["--files"]), "sweep.toml\nbase.toml\n");
    let cases = listed(&["--list", "--shard", "2/2"]);
    assert_eq!(cases.lines().count(), 12);
    assert!(
        cases.starts_with("{\"case\":12,\"parameters\":{\"link.dsl.queue\":\""),
        "{cases}"
    );
}

#[test]
fn job_array_script_computes_the_shard_of_its_task() {
    let files = Files::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/sweep_slurm.sh");
    let task = |index: &str| {
        Command::new("bash")
            .arg(&script)
            .args(["sweep.toml", "rows"])
            .current_dir(files.0.path())
            .env("PLEACH", env!("CARGO_BIN_EXE_pleach"))
            .env("SLURM_ARRAY_TASK_ID", index)
            .env("SLURM_ARRAY_TASK_MAX", "12")
            .env("SLURM_CPUS_PER_TASK", "1")
            .output()
            .expect("bash runs")
    };
    let output = task("3");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&files.path("rows/shard-3-of-12.jsonl")), 2);
    assert_eq!(task("13").status.code(), Some(2));
}
