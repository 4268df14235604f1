//! Tests the dashboard in a real browser, against a real daemon.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf, thread, time::Duration};

use pleach_linux::clock;

use crate::{
    browser::Browser,
    process::{Client, Daemon, Gateway},
    traffic::{SteadyStream, Target},
    world::{World, run},
};

const PAGE: &str = "http://127.0.0.1:7780/";

/// Returns the bytes sent over both links, and the time.
fn sent(client: &Daemon) -> (f64, u64) {
    let status = client.until_up();
    let of = |at: usize| status["links"][at]["tx_bytes"].as_f64().expect("a number");
    (of(0) + of(1), clock::unix_nanos() / 1_000_000)
}

#[test]
fn the_page_tells_what_the_daemon_does() {
    let Some(world) = World::new() else { return };
    let Some(mut browser) = Browser::start(&world.client, world.dir.path()) else {
        return;
    };
    world.slow();
    let gateway = Gateway {
        policy: "weighted",
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let client = Client {
        policy: "weighted",
        tunnel: "pleach0",
        links: &[],
        more: &format!(
            "[dashboard]\nlisten = \"127.0.0.1:7780\"\nhistory = \"{}\"\n\
               [[link]]\nname = \"dsl\"\ndevice = \"l0\"\n[[link]]\nname = \"lte\"\ndevice = \"l1\"\n",
            world.dir.path().join("history.db").display()
        ),
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["dsl", "lte"]);
    let weights = client.command("weights", &["dsl=5", "lte=2"]);
    assert!(weights.status.success(), "{weights:?}");

    browser.open(PAGE, 1280, 900, "light");
    browser.until("the headline", "document.querySelector('#headline-text')?.textContent.endsWith('is up over 2 of 2 links.')");
    let server = Target::new(&world.server, "10.99.0.2");
    let stream = SteadyStream::start(&world.client, &server);
    browser.until("traffic", "state.points.length > 8 && state.points.at(-1).tx_mbps > 5 && state.points.at(-1).rx_mbps > 5");

    // The mean rate on the page is near the rate from the daemon's counters over the same time.
    let is_near = (0..3).any(|_| {
        let (before, from) = sent(&client);
        thread::park_timeout(Duration::from_secs(10));
        let (after, to) = sent(&client);
        let seconds = (to - from) as f64 / 1e3;
        let told = (after - before) * 8e-6 / seconds;
        let mean = format!(
            "(() => {{ const p = state.points.filter((p) => p.at_ms > {from} && p.at_ms <= {to} + 500); \
             return p.reduce((sum, p) => sum + p.tx_mbps, 0) / p.length; }})()"
        );
        let shown = browser.evaluate(&mean).as_f64().expect("a rate");
        eprintln!("status tells {told:.2} Mbit/s, the page {shown:.2}");
        (shown / told - 1.0).abs() < 0.05
    });
    assert!(is_near, "the page's rate is never that of status");
    for (name, weight) in [("dsl", 5), ("lte", 2)] {
        let link = browser.evaluate(&format!(
            "state.live.links.find((link) => link.name === '{name}')"
        ));
        assert_eq!(link["weight"], weight);
        assert_eq!(link["why"], format!("{name} carries packets"));
    }
    for view in ["tx", "capacity", "rtt", "queue", "repair", "loss", "rx"] {
        browser.evaluate(&format!(
            "document.querySelector('[data-view={view}]').click()"
        ));
        let drawn = browser.evaluate("document.querySelectorAll('#chart path').length");
        assert!(
            drawn.as_u64().is_some_and(|paths| paths > 0),
            "{view} is not drawn"
        );
        let told = browser.evaluate("document.querySelector('#chart').getAttribute('aria-label')");
        assert!(
            told.as_str()
                .is_some_and(|text| text.contains("now: ") && !text.contains("NaN")),
            "{told}"
        );
    }
    usable(&mut browser);
    keep(&mut browser, "dashboard", 1280, 900);

    // A link goes down: its sentence must appear.
    let at = clock::now();
    run(&world.client, "ip", &["link", "set", "l1", "down"]);
    browser.until(
        "the sentence of the dead link",
        "document.querySelector('[data-link=lte] .why').textContent.includes('is down')",
    );
    eprintln!(
        "the sentence came after {} ms",
        clock::now().since(at).as_millis()
    );
    let told = client.until_up();
    let why = crate::process::link(&told, "lte").expect("the link")["why"].clone();
    let shown = browser.evaluate("document.querySelector('[data-link=lte] .why').textContent");
    assert_eq!(shown, format!("{}.", why.as_str().expect("a sentence")));
    browser.until(
        "the advice",
        "document.querySelector('[data-link=lte] .advice').checkVisibility()",
    );
    browser.until(
        "the headline",
        "document.querySelector('#headline-text').textContent.endsWith('1 of 2 links.')",
    );
    browser.until(
        "an event",
        "document.querySelector('#events').textContent.includes('lte')",
    );

    // The history contains the rates that the chart has shown.
    browser.evaluate(
        "(() => { const e = document.querySelector('#range'); e.value = '3600'; e.dispatchEvent(new Event('change')); })()",
    );
    browser.until(
        "the hour",
        "state.past.length > 10 && state.past.some((point) => point.tx_mbps > 5) && document.querySelectorAll('#chart path').length > 0",
    );
    browser.evaluate(
        "(() => { const e = document.querySelector('#range'); e.value = '0'; e.dispatchEvent(new Event('change')); })()",
    );

    browser.until(
        "seconds of one link",
        "state.points.slice(-5).every((point) => point.links.find((link) => link.name === 'lte').tx_mbps === 0)",
    );
    keep(&mut browser, "dashboard-link-down", 1280, 900);

    // Without a token, nobody may change anything over TCP.
    let refused = browser.evaluate(
        "fetch('/v1/weights', { method: 'PUT', headers: { 'Content-Type': 'application/json' }, \
         body: '{\"weights\":{\"dsl\":9}}' }).then((answer) => answer.status)",
    );
    assert_eq!(refused, 403);
    let quiet = |error: &&String| !error.contains("403");
    let errors: Vec<_> = browser.errors.iter().filter(quiet).cloned().collect();
    assert!(errors.is_empty(), "{errors:?}");

    // On a phone, with a dark colour scheme.
    browser.errors.clear();
    browser.open(PAGE, 390, 844, "dark");
    browser.until(
        "the links",
        "document.querySelectorAll('.link').length === 2 && state.live.tx_mbps > 1",
    );
    let width = browser.evaluate("document.documentElement.scrollWidth");
    assert!(
        width.as_f64().is_some_and(|width| width <= 390.0),
        "wider than the screen: {width}"
    );
    usable(&mut browser);
    keep(&mut browser, "dashboard-phone", 390, 1500);
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    drop(stream);
}

#[test]
fn a_rule_made_in_the_page_is_listed_and_removed() {
    let Some(world) = World::new() else { return };
    let Some(mut browser) = Browser::start(&world.client, world.dir.path()) else {
        return;
    };
    let tokens = world.dir.path().join("tokens");
    let token = "a-token-of-the-tests";
    std::fs::write(&tokens, token).expect("file");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("mode");
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let more = format!(
        "[dashboard]\nlisten = \"127.0.0.1:7780\"\ntoken_file = \"{}\"\n",
        tokens.display()
    );
    let client = Client {
        more: &more,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    browser.open(&format!("{PAGE}#token={token}"), 1280, 900, "light");
    browser.until(
        "the form",
        "document.querySelector('#rule-link')?.options.length === 3",
    );
    usable(&mut browser);
    let fill = |port: &str, link: &str| {
        format!(
            "(() => {{ document.querySelector('#rule-port').value = '{port}'; \
               document.querySelector('#rule-link').value = '{link}'; \
               document.querySelector('#rule-form').requestSubmit(); }})()"
        )
    };
    for (port, link, shown) in [("443", "l1", "port=443l1"), ("25", "", "port=25none")] {
        browser.evaluate(&fill(port, link));
        browser.until(
            "the rule",
            &format!("document.querySelector('#rules tr').textContent.startsWith('{shown}')"),
        );
    }
    let rules = client.until_up()["rules"].clone();
    assert_eq!(rules.as_array().map(Vec::len), Some(2), "{rules}");
    assert!(rules[0]["link"].is_null() && rules[1]["link"] == "l1");
    browser.evaluate(&fill("99999", "l1"));
    browser.until(
        "the mistake",
        "document.querySelector('#rules-note').textContent.includes('expected a port')",
    );
    browser.evaluate("document.querySelector('#rules button').click()");
    client.until("one is removed", |status| {
        status["rules"].as_array().map(Vec::len) == Some(1) && status["rules"][0]["link"] == "l1"
    });
    let refused = |error: &&String| !error.contains("409");
    let errors: Vec<_> = browser.errors.iter().filter(refused).cloned().collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn a_gateways_page_asks_for_a_token_and_lists_its_clients() {
    let Some(world) = World::new() else { return };
    let Some(mut browser) = Browser::start(&world.client, world.dir.path()) else {
        return;
    };
    world.slow();
    let tokens = world.dir.path().join("tokens");
    let token = "a-token-of-the-tests";
    std::fs::write(&tokens, format!("{token} read-only\n")).expect("file");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("mode");
    let gateway = Gateway {
        more: &format!(
            "[dashboard]\nlisten = \"10.77.0.1:7780\"\ntoken_file = \"{}\"\n",
            tokens.display()
        ),
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    let _stream = SteadyStream::start(&world.client, &server);

    // Open the dashboard through the tunnel.
    browser.open("http://10.77.0.1:7780/", 1280, 900, "dark");
    browser.until(
        "the question for a token",
        "document.querySelector('#login')?.open === true",
    );
    usable(&mut browser);
    browser.evaluate("document.querySelector('#token').value = 'wrong-token-of-tests'");
    browser.evaluate("document.querySelector('#login form').requestSubmit()");
    browser.until(
        "the refusal",
        "document.querySelector('#login').open && document.querySelector('#login-error').textContent.includes('does not know')",
    );
    browser.evaluate(&format!(
        "document.querySelector('#token').value = '{token}'"
    ));
    browser.evaluate("document.querySelector('#login form').requestSubmit()");
    browser.until(
        "the client",
        "document.querySelector('#clients')?.textContent.includes('c2connected') && state.live.tx_mbps > 5 && state.points.length > 5",
    );
    browser.until(
        "the headline",
        "document.querySelector('#headline-text').textContent === 'plD0 is a gateway: 1 of 1 client connected.'",
    );
    assert_eq!(
        browser.evaluate("document.querySelector('#links-section').checkVisibility()"),
        false
    );
    assert_eq!(browser.evaluate("state.mayChange"), false);
    let tabs = browser.evaluate(
        "[...document.querySelectorAll('#tabs button')].filter((e) => e.checkVisibility()).map((e) => e.textContent)",
    );
    assert_eq!(tabs, serde_json::json!(["From clients", "To clients"]));
    usable(&mut browser);
    keep(&mut browser, "dashboard-gateway", 1280, 900);
    let refused = |error: &&String| !error.contains("401");
    let errors: Vec<_> = browser.errors.iter().filter(refused).cloned().collect();
    assert!(errors.is_empty(), "{errors:?}");

    // A host name that an attacker has made resolve to this address is refused.
    run(
        &world.client,
        "sh",
        &[
            "-c",
            "curl -s -o /dev/null -w '%{http_code}' -H 'Host: evil.example' http://10.77.0.1:7780/ | grep -qx 421",
        ],
    );
}

/// Asserts that the page is usable without sight and without a mouse: all controls have names, the page has a language,
/// each section has a heading and a name, and the text contrast is at least 4.5 to 1 (WCAG 2.2, 1.4.3).
#[track_caller]
fn usable(browser: &mut Browser) {
    let missing = browser.evaluate(
        r#"(() => {
            const bad = [];
            if (!document.documentElement.lang) bad.push('no language');
            const shown = (e) => e.checkVisibility();
            for (const e of document.querySelectorAll('input, button, a, [role=img], [role=radiogroup], section')) {
                const label = e.id && document.querySelector(`label[for="${e.id}"]`);
                const by = document.getElementById(e.getAttribute('aria-labelledby') ?? '');
                const name = e.getAttribute('aria-label') || by?.textContent || label?.textContent ||
                    (e.tagName === 'SECTION' ? '' : e.textContent);
                if (shown(e) && !name?.trim()) bad.push(`no name: ${e.outerHTML.slice(0, 80)}`);
            }
            const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
            if (new Set(ids).size !== ids.length) bad.push('an id twice');
            const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
            const rgb = (text) => {
                canvas.clearRect(0, 0, 1, 1);
                canvas.fillStyle = text;
                canvas.fillRect(0, 0, 1, 1);
                return [...canvas.getImageData(0, 0, 1, 1).data];
            };
            const light = ([r, g, b]) => {
                const part = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
                return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
            };
            const ground = (e) => {
                for (; e; e = e.parentElement) {
                    const colour = rgb(getComputedStyle(e).backgroundColor);
                    if (colour[3] === 255) return colour;
                }
                return [255, 255, 255, 255];
            };
            for (const e of document.querySelectorAll('body *')) {
                const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
                if (!own || !shown(e) || e.matches('.skip')) continue;
                const style = getComputedStyle(e);
                const ink = rgb(e.ownerSVGElement ? style.fill : style.color);
                const [a, b] = [light(ink), light(ground(e))];
                const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                if (ratio < 4.5) bad.push(`contrast ${ratio.toFixed(2)}: ${e.textContent.slice(0, 40)}`);
            }
            return bad;
        })()"#,
    );
    assert_eq!(missing, serde_json::json!([]), "not usable by all");
    // Also run axe-core, if `PLEACH_AXE` contains the path of axe.min.js.
    if let Some(file) = std::env::var_os("PLEACH_AXE") {
        browser.evaluate(&std::fs::read_to_string(file).expect("axe.min.js"));
        let found = browser.evaluate(
            "axe.run().then((found) => found.violations.map((v) => `${v.impact} ${v.id}: ${v.nodes.map((n) => n.html.slice(0, 90))}`))",
        );
        assert_eq!(found, serde_json::json!([]), "axe-core");
    }
}

/// Saves a picture in the directory `PLEACH_PICTURES`, if the user has set it.
fn keep(browser: &mut Browser, name: &str, width: u32, height: u32) {
    let Some(directory) = std::env::var_os("PLEACH_PICTURES") else {
        return;
    };
    let file = PathBuf::from(directory).join(format!("{name}.png"));
    browser.picture(&file, width, height);
}
