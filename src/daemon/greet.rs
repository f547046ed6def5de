//! The log lines at the start: the addresses, the rules, and a command to try.

use tracing::info;

use tidegate_config::{Address, Config};
use tidegate_core::pure::Rule;

/// The most rules that are logged at the start.
const RULES_GREETED_MAX: usize = 20;

/// Logs the addresses, the rules, and a command to try.
pub(super) fn greet(config: &Config, at: &[(&'static str, Address)]) {
    for (door, address) in at {
        info!(door, %address, "listening");
    }
    let rules = config.rules.all();
    for rule in rules.iter().take(RULES_GREETED_MAX) {
        let limit = rule
            .spec
            .limit
            .map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        info!(
            rule = rule.label,
            limit,
            algorithm = rule.spec.algorithm.name(),
            "rule"
        );
    }
    let http = at
        .iter()
        .find(|(door, _)| *door == "http")
        .map(|(_, address)| address);
    if let (Some(address), Some(rule)) = (http, rules.first()) {
        info!("try: {}", try_line(address, rule));
    }
}

/// A command that checks `rule`.
fn try_line(address: &Address, rule: &Rule) -> String {
    let domain = rule.domain();
    let query = rule
        .steps()
        .iter()
        .fold(format!("domain={}", encoded(domain)), |query, step| {
            let value = step.value.as_deref().unwrap_or("abc123").replace('*', "x");
            format!("{query}&{}={}", encoded(&step.key), encoded(&value))
        });
    match address {
        Address::Tcp(address) => format!("curl -i 'http://{address}/v1/check?{query}'"),
        Address::Unix(path) => {
            format!(
                "curl -i --unix-socket {} 'http://localhost/v1/check?{query}'",
                path.display()
            )
        }
    }
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
        .to_string()
        .replace("%5F", "_")
        .replace("%2D", "-")
        .replace("%2E", ".")
}
