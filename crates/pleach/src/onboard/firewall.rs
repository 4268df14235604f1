//! Whether a packet filter on this host may block a gateway's port.
//!
//! nftables lists its base chains. A chain at the hook `input` whose policy is drop lets in only packets that a rule
//! accepts. The rules themselves are not evaluated: the user gets the command to type, for the tool that manages the
//! rules of this host. Limits: rules of `iptables-legacy` and of the provider are not seen.

use std::{path::Path, process::Command};

/// Returns a sentence about a filter that may block UDP `port`; `None` if there is no such filter, or if the chains
/// cannot be listed.
pub(crate) fn obstacle(port: u16) -> Option<String> {
    let output = Command::new("nft")
        .args(["-j", "list", "chains"])
        .output()
        .ok()?;
    let chain = closed_chain(&output.stdout)?;
    let remedy = if Path::new("/run/firewalld").is_dir() {
        format!("`firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload`")
    } else if std::fs::read_to_string("/etc/ufw/ufw.conf")
        .is_ok_and(|text| text.contains("ENABLED=yes"))
    {
        format!("`ufw allow {port}/udp`")
    } else {
        format!(
            "`nft insert rule {chain} udp dport {port} accept`, and add this rule to your permanent rules"
        )
    };
    Some(format!(
        "the firewall of this host drops incoming packets (chain {chain}): allow UDP port {port} with {remedy}"
    ))
}

/// Returns family, table and name of the first input chain whose policy is drop.
fn closed_chain(json: &[u8]) -> Option<String> {
    let rules: serde_json::Value = serde_json::from_slice(json).ok()?;
    let objects = rules["nftables"].as_array()?;
    let mut chains = objects.iter().map(|object| &object["chain"]);
    let chain = chains.find(|chain| chain["hook"] == "input" && chain["policy"] == "drop")?;
    let part = |key: &str| chain[key].as_str().unwrap_or_default();
    Some(format!(
        "{} {} {}",
        part("family"),
        part("table"),
        part("name")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_input_chain_that_drops_is_an_obstacle() {
        let json = |hook: &str, policy: &str| {
            format!(
                r#"{{"nftables": [{{"metainfo": {{"version": "1.0.6"}}}},
                {{"chain": {{"family": "inet", "table": "filter", "name": "other", "handle": 1}}}},
                {{"chain": {{"family": "inet", "table": "filter", "name": "in", "handle": 2,
                "type": "filter", "hook": "{hook}", "prio": 0, "policy": "{policy}"}}}}]}}"#
            )
        };
        let closed = |hook, policy| closed_chain(json(hook, policy).as_bytes());
        assert_eq!(closed("input", "drop").as_deref(), Some("inet filter in"));
        assert_eq!(closed("input", "accept"), None);
        assert_eq!(closed("forward", "drop"), None);
        assert_eq!(closed_chain(b"no JSON"), None);
    }
}
