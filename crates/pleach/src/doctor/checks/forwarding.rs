//! Whether a gateway's host lets packets through: forwarding is on, and no firewall drops packets from the tunnel or
//! datagrams to the gateway's port.
//!
//! All rules are read from nftables. A base chain whose policy is drop blocks the traffic, unless it contains or jumps
//! to a suitable rule. A rule is suitable if it names the tunnel's device (or, in the check of the port, the port's
//! number), if it accepts all packets, or if it cannot be read (matches of iptables). Limits: the check does not see a
//! rule that drops in a chain whose policy is accept, `iptables-legacy`, and a provider's firewall.

use std::{fs, process::Command};

use serde_json::Value;

use crate::doctor::problem::Problem;

/// Facts about the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// `net.ipv4.ip_forward`; `None` if it cannot be read.
    forwards: Option<bool>,
    /// Whether the daemon runs; the daemon switches forwarding on.
    is_running: bool,
    /// Output of `nft -j list ruleset`.
    rules: Value,
}

/// Collects the facts. `is_running`: whether the daemon runs.
pub(crate) fn observe(is_running: bool) -> Facts {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/ip_forward").ok();
    let output = Command::new("nft").args(["-j", "list", "ruleset"]).output();
    let rules = output
        .ok()
        .and_then(|output| serde_json::from_slice(&output.stdout).ok());
    Facts {
        forwards: setting.map(|text| text.trim() != "0"),
        is_running,
        rules: rules.unwrap_or_default(),
    }
}

/// Judges the facts. `tunnel`: the tunnel's device; `port`: the port on which the gateway listens.
pub(crate) fn verdicts(facts: &Facts, tunnel: &str, port: u16) -> Vec<Problem> {
    let mut problems = Vec::new();
    if facts.forwards == Some(false) && facts.is_running {
        problems.push(Problem::new(
            "forwarding-off",
            "this host does not forward IPv4 packets: clients cannot reach other hosts through it",
            "run `sysctl net.ipv4.ip_forward=1`, and find the program that sets it to 0",
        ));
    }
    if let Some(chain) = facts.closed("forward", |value| value.as_str() == Some(tunnel)) {
        problems.push(Problem::new(
            "firewall-forward",
            format!("the firewall drops forwarded packets (chain {chain}), and none of its rules accepts the device {tunnel}"),
            format!("run `nft insert rule {chain} iifname {tunnel} accept` and `nft insert rule {chain} oifname {tunnel} accept`, and add both to your permanent rules"),
        ));
    }
    if let Some(chain) = facts.closed("input", |value| has_port(value, port)) {
        problems.push(Problem::new(
            "firewall-input",
            format!("the firewall drops incoming packets (chain {chain}), and none of its rules accepts UDP port {port}"),
            format!("run `nft insert rule {chain} udp dport {port} accept`, and add this rule to your permanent rules"),
        ));
    }
    problems
}

impl Facts {
    /// Returns family, table and name of the first base chain at `hook` whose policy is drop and that has no rule that
    /// `opens` it.
    fn closed(&self, hook: &str, opens: impl Fn(&Value) -> bool) -> Option<String> {
        let chains = self.objects("chain");
        let mut closed = chains.filter(|chain| chain["hook"] == hook && chain["policy"] == "drop");
        let chain = closed.find(|chain| {
            let mut rules = Vec::new();
            self.gather(chain, &chain["name"], &mut Vec::new(), &mut rules);
            !rules.iter().any(|rule| is_open(rule, &opens))
        })?;
        let part = |key: &str| chain[key].as_str().unwrap_or_default();
        Some(format!(
            "{} {} {}",
            part("family"),
            part("table"),
            part("name")
        ))
    }

    fn objects(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        let objects = self.rules["nftables"].as_array().into_iter().flatten();
        objects.filter_map(move |object| object.get(kind))
    }

    /// Collects the rules of the chain `name` in the table of `base`, and of the chains it jumps to, each chain once.
    fn gather<'a>(
        &'a self,
        base: &Value,
        name: &'a Value,
        seen: &mut Vec<&'a Value>,
        rules: &mut Vec<&'a Value>,
    ) {
        if seen.contains(&name) {
            return;
        }
        seen.push(name);
        let of_chain = |rule: &&Value| {
            rule["family"] == base["family"]
                && rule["table"] == base["table"]
                && rule["chain"] == *name
        };
        for rule in self.objects("rule").filter(of_chain) {
            rules.push(rule);
            for expression in rule["expr"].as_array().into_iter().flatten() {
                for jump in ["jump", "goto"] {
                    if let Some(target) = expression.get(jump).and_then(|jump| jump.get("target")) {
                        self.gather(base, target, seen, rules);
                    }
                }
            }
        }
    }
}

/// Whether a rule accepts the traffic that `opens` recognises, as far as the check can read the rule.
fn is_open(rule: &Value, opens: &impl Fn(&Value) -> bool) -> bool {
    let expressions = rule["expr"].as_array();
    let all = |names: &[&str]| {
        let mut each = expressions.into_iter().flatten();
        each.all(|expression| names.iter().any(|name| expression.get(name).is_some()))
    };
    let drops = |name: &str| {
        let mut each = expressions.into_iter().flatten();
        each.any(|expression| expression.get(name).is_some())
    };
    let accepts_all = drops("accept") && all(&["accept", "counter", "log"]);
    let is_opaque = drops("xt") && !drops("drop");
    accepts_all || is_opaque || (!drops("drop") && !drops("reject") && any(&rule["expr"], opens))
}

fn any(value: &Value, holds: &impl Fn(&Value) -> bool) -> bool {
    let within = match value {
        Value::Array(items) => items.iter().any(|item| any(item, holds)),
        Value::Object(entries) => entries.values().any(|entry| any(entry, holds)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    within || holds(value)
}

/// Whether `value`, a number or `{"range": [first, last]}`, contains `port`.
fn has_port(value: &Value, port: u16) -> bool {
    let port = u64::from(port);
    let bound = |index: usize| value.get("range")?.get(index)?.as_u64();
    let in_range = bound(0).zip(bound(1));
    value.as_u64() == Some(port)
        || in_range.is_some_and(|(first, last)| (first..=last).contains(&port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(hook: &str, rules: Vec<Value>) -> Facts {
        let chain = |name: &str| json!({"family": "inet", "table": "filter", "name": name});
        let mut base = chain("base");
        base["hook"] = json!(hook);
        base["policy"] = json!("drop");
        let rules = rules.into_iter().enumerate().map(|(number, expressions)| {
            let name = if number == 0 { "base" } else { "other" };
            json!({"rule": {"family": "inet", "table": "filter", "chain": name, "expr": expressions}})
        });
        let mut objects = vec![
            json!({"metainfo": {}}),
            json!({"chain": base}),
            json!({"chain": chain("other")}),
        ];
        objects.extend(rules);
        Facts {
            forwards: Some(true),
            is_running: true,
            rules: json!({ "nftables": objects }),
        }
    }

    fn codes(facts: &Facts) -> Vec<&'static str> {
        let problems = verdicts(facts, "pleach0", 7700).into_iter();
        problems.map(|problem| problem.code).collect()
    }

    #[test]
    fn a_chain_is_closed_unless_a_rule_it_leads_to_names_the_device() {
        let jump = json!([{"jump": {"target": "other"}}]);
        let named = |device: &str, verdict: &str| json!([{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": device}}, {verdict: null}]);
        let found = |rules| codes(&facts("forward", rules));
        assert_eq!(found(vec![]), ["firewall-forward"]);
        assert_eq!(
            found(vec![jump.clone(), named("docker0", "accept")]),
            ["firewall-forward"]
        );
        assert_eq!(
            found(vec![jump.clone(), named("pleach0", "drop")]),
            ["firewall-forward"]
        );
        assert_eq!(
            found(vec![jump.clone(), jump.clone()]),
            ["firewall-forward"]
        );
        assert!(found(vec![jump, named("pleach0", "accept")]).is_empty());
        assert!(found(vec![json!([{"counter": {}}, {"accept": null}])]).is_empty());
        assert!(found(vec![json!([{"xt": {"name": "udp"}}, {"accept": null}])]).is_empty());
    }

    #[test]
    fn a_port_is_open_by_number_set_or_range() {
        let ports = |right: Value| {
            let rule = json!([{"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": right}}, {"accept": null}]);
            codes(&facts("input", vec![rule]))
        };
        assert!(ports(json!(7700)).is_empty());
        assert!(ports(json!({"set": [53, 7700]})).is_empty());
        assert!(ports(json!({"range": [7000, 8000]})).is_empty());
        assert_eq!(ports(json!({"range": [7, 80]})), ["firewall-input"]);
        let mut off = facts("output", vec![]);
        assert!(codes(&off).is_empty());
        off.forwards = Some(false);
        assert_eq!(codes(&off), ["forwarding-off"]);
    }
}
