//! The dashboard of a proxy in a real browser: a rule made by a click moves connections.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
};

use crate::{
    browser::Browser,
    client,
    world::{ECHO_PORT, World},
};

#[test]
fn a_rule_made_in_the_page_moves_new_connections() {
    let Some(world) = World::new() else { return };
    let Some(mut browser) = Browser::start(world.client(), world.dir.path()) else {
        return;
    };
    let token = "a-token-of-the-tests";
    let tokens = world.dir.path().join("tokens");
    fs::write(&tokens, token).expect("file");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("mode");
    let view = format!(
        "[dashboard]\nlisten = \"127.0.0.1:7780\"\ntoken_file = \"{}\"\n",
        tokens.display()
    );
    let proxy = world.proxy("scheduler = \"only-one\"", &view);
    let echo = || {
        let connection = world.client().run(|| {
            let mut connection = client::tunnel(ECHO_PORT)?;
            connection.write_all(b"a")?;
            connection.read_exact(&mut [0])?;
            Ok(connection)
        });
        connection.expect("inside")
    };
    let _first = echo();
    browser.open(
        &format!("http://127.0.0.1:7780/#token={token}"),
        1280,
        900,
        "light",
    );
    browser.until(
        "the connection",
        "document.querySelectorAll('#connections select').length === 1",
    );
    // The destination of the connection, which has no program's name here, or its program.
    browser.evaluate(
        "(() => { const menu = document.querySelector('#connections select'); \
           menu.value = 'lte'; menu.nextSibling.click(); })()",
    );
    browser.until(
        "the answer",
        "document.querySelector('#applications-note').textContent.includes('link lte')",
    );
    let _second = echo();
    let status = proxy.until("the second is there", |status| {
        status["connection_count"] == 2
    });
    let link = |index: usize| &status["connections"][index]["link"];
    assert_eq!(
        (link(0), link(1)),
        (&"wifi".into(), &"lte".into()),
        "{status}"
    );
    browser.until(
        "the second",
        "document.querySelector('#connections').textContent.includes('assigned')",
    );
    browser.evaluate(
        "(() => { document.querySelector('#scheduler').value = 'round-robin'; \
           document.querySelector('#scheduler-form button').click(); })()",
    );
    proxy.until("another scheduler", |status| {
        status["scheduler"]["policy"] == "round-robin"
    });
    browser.until(
        "the page names it",
        "document.querySelector('#facts').textContent === 'policy round-robin'",
    );
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}
