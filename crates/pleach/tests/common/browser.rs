//! A browser without a screen, driven by the DevTools protocol over its pipe: JSON, each message ended by a zero byte.
//!
//! <https://chromedevtools.github.io/devtools-protocol/>, `--remote-debugging-pipe`: the browser reads commands on
//! descriptor 3 and writes answers and events on descriptor 4. Both are FIFOs here, which a shell opens for the
//! browser.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::requirement;
use serde_json::{Value, json};

use crate::world::{PATIENCE, within};

/// Name of the program, and of Debian's package.
const PROGRAM: &str = "chromium-headless-shell";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: File,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// Errors that the page has reported.
    pub(crate) errors: Vec<String>,
}

impl Browser {
    /// Starts a browser on `host` that stores its files in `dir`. Returns `None`, and prints a message, if there is no
    /// browser.
    pub(crate) fn start(host: &Netns, dir: &Path) -> Option<Self> {
        if Command::new(PROGRAM).arg("--version").output().is_err() {
            requirement::skip(format_args!(
                "no {PROGRAM}; ./dev test installs it with PLEACH_REQUIRE_LAB=1"
            ));
            return None;
        }
        let profile = dir.join("browser");
        fs::create_dir(&profile).expect("directory");
        let [to, from] = ["to", "from"].map(|name| profile.join(name));
        for fifo in [&to, &from] {
            let made = host.command("mkfifo").arg(fifo).status();
            assert!(made.expect("starts").success(), "{}", fifo.display());
        }
        // The sandbox is switched off because the tests run as root.
        let child = host
            .command("sh")
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<\"$PIPE_TO\" 4>\"$PIPE_FROM\"",
                PROGRAM,
            ])
            .args(["--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"])
            .arg("--disable-dev-shm-usage")
            .arg("--no-proxy-server")
            .arg("--disable-background-networking")
            .arg("--hide-scrollbars")
            .arg(format!("--user-data-dir={}", profile.display()))
            .env("PIPE_TO", &to)
            .env("PIPE_FROM", &from)
            .env("HOME", &profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let commands = File::options()
            .write(true)
            .open(&to)
            .expect("the shell reads");
        let answers = File::open(&from).expect("the shell writes");
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(answers);
            loop {
                let mut message = Vec::new();
                if !reader
                    .read_until(0, &mut message)
                    .is_ok_and(|length| length > 0)
                {
                    return;
                }
                message.pop();
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Some(Self {
            child,
            commands,
            messages,
            session: None,
            last_id: 0,
            errors: Vec::new(),
        })
    }

    /// Opens `url` in a new page. All further calls refer to this page.
    pub(crate) fn open(&mut self, url: &str, width: u32, height: u32, scheme: &str) {
        self.session = None;
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", attach);
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 }),
        );
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Returns the value of a JavaScript expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let result = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until `expression` is true. Otherwise panics with `what` and the page's text.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, expression: &str) {
        let found = within(PATIENCE, || {
            (self.evaluate(expression) == true).then_some(())
        });
        if found.is_none() {
            let text = self.evaluate("document.body?.innerText ?? ''");
            panic!(
                "never happened: {what}; the page says: {text}; errors: {:?}",
                self.errors
            );
        }
    }

    /// Saves a picture of the page's upper part as PNG.
    pub(crate) fn picture(&mut self, file: &Path, width: u32, height: u32) {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let shot = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
        let shot = self.call("Page.captureScreenshot", shot);
        let data = shot["data"].as_str().expect("a picture");
        let decoded = base64_decode(data);
        assert!(decoded.starts_with(b"\x89PNG"), "no PNG");
        fs::write(file, decoded).expect("file");
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut line = message.to_string().into_bytes();
        line.push(0);
        self.commands.write_all(&line).expect("the browser runs");
        loop {
            let message = self
                .messages
                .recv_timeout(PATIENCE + Duration::from_secs(30));
            let message = message.unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        let is_error = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => parameters["type"] == "error",
            Some("Log.entryAdded") => parameters["entry"]["level"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.push(parameters.to_string());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64 (RFC 4648, section 4).
fn base64_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for symbol in text.bytes() {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).expect("a byte"));
        }
    }
    bytes
}
