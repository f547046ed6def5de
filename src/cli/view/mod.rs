//! Turns two readings of a sidecar's admin API into lines of text.
//!
//! The lines contain texts that clients have chosen: none of them may reach the terminal as a command.

use serde_json::Value;

use super::printable;

/// The answers of a sidecar's admin API at one time.
#[derive(Clone, Debug)]
pub struct AdminReading {
    /// `/admin/v1/status`.
    pub status: Value,
    /// `/admin/v1/top`.
    pub top: Value,
}

/// The room for a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewSize {
    pub columns: usize,
    pub lines: usize,
}

/// How a line is highlighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Head,
    Alarm,
}

/// One line of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewLine {
    pub text: String,
    pub tone: Tone,
}

/// The width of a limit, and of a number.
const LIMIT_COLUMNS: usize = 24;
const NUMBER_COLUMNS: usize = 11;
/// The smallest width of a name.
const NAME_COLUMNS_MIN: usize = 16;

/// The most faults of a refused reload that are shown.
const FAULTS_MAX: usize = 3;

/// The state of the sidecar in `now`, with rates since `before`.
pub fn view(now: &AdminReading, before: &AdminReading, size: ViewSize) -> Vec<ViewLine> {
    let view = View {
        status: &now.status,
        top: &now.top,
        rates: Rates::between(now, before),
        columns: size.columns,
    };
    let mut lines = view.summary();
    let (rules, keys) = (view.rules(), view.keys());
    // The keys get up to half of the other lines, the rules get the rest.
    let left = size.lines.saturating_sub(lines.len() + 2);
    let keys_room = (left / 2).max(left.saturating_sub(rules.len()));
    let keys_shown = keys.len().min(keys_room);
    lines.push(view.line(String::new(), Tone::Plain));
    lines.extend(view.shortened(rules, left - keys_shown));
    lines.push(view.line(String::new(), Tone::Plain));
    lines.extend(keys.into_iter().take(keys_shown));
    lines.truncate(size.lines);
    lines
}

/// Turns totals into rates. If the pod was restarted between the readings, there are none.
struct Rates<'a> {
    before: &'a Value,
    seconds: Option<f64>,
}

impl<'a> Rates<'a> {
    fn between(now: &AdminReading, before: &'a AdminReading) -> Self {
        let at = |reading: &AdminReading| seconds(&reading.top["at"]);
        let start = |reading: &AdminReading| reading.status["incarnation"].clone();
        let length = at(now).zip(at(before)).map(|(now, before)| now - before);
        Self {
            before: &before.top,
            seconds: length.filter(|length| *length > 0.0 && start(now) == start(before)),
        }
    }

    fn of(&self, now: &Value, before: &Value) -> String {
        let rate = || Some((now.as_f64()? - before.as_f64()?).max(0.0) / self.seconds?);
        rate().map_or_else(|| "-".to_owned(), figure)
    }

    fn rule(&self, label: &Value) -> &Value {
        let rules = self.before["rules"].as_array();
        let mut rules = rules.into_iter().flatten();
        let found = rules.find(|rule| rule["rule"] == *label);
        found.map_or(&Value::Null, |rule| &rule["decisions"])
    }
}

/// The parts of a view.
struct View<'a> {
    status: &'a Value,
    top: &'a Value,
    rates: Rates<'a>,
    columns: usize,
}

impl View<'_> {
    fn summary(&self) -> Vec<ViewLine> {
        let (status, top, before) = (self.status, self.top, self.rates.before);
        let ready = status["ready"] == true;
        let head = format!(
            "tidegate {} {}  {}  {}",
            word(&status["pod"]),
            word(&status["version"]),
            if ready { "ready" } else { "not ready" },
            store(status),
        );
        let partitioned = status["store"]["partitioned"] == true;
        let rate = |decision: &str| {
            let (now, before) = (&top["decisions"], &before["decisions"]);
            self.rates.of(&now[decision], &before[decision])
        };
        let checks = &top["checks"];
        let decided = self
            .rates
            .of(&checks["decided"], &before["checks"]["decided"]);
        let time = |name: &str| seconds(&checks["recent"][name]).map_or("-".to_owned(), length);
        let decisions = format!(
            "{decided} checks/s  allow {}/s  deny {}/s  shadow deny {}/s  p50 {}  p99 {}",
            rate("allow"),
            rate("deny"),
            rate("shadow_deny"),
            time("p50"),
            time("p99"),
        );
        let number = |value: &Value| value.as_f64().map_or("-".to_owned(), figure);
        let books = &status["books"];
        let unreported =
            books["pending"].as_f64().unwrap_or(0.0) + books["in_flight"].as_f64().unwrap_or(0.0);
        let tables = status["keys"]["tables"].as_object().into_iter().flatten();
        let fullest = tables.filter_map(|(_, held)| held.as_u64()).max();
        let held = format!(
            "keys {}, fullest table {} of {}  {} cells overshoot  {} to be reported  configuration {}",
            number(&status["keys"]["held"]),
            fullest.map_or("-".to_owned(), |held| figure(held as f64)),
            number(&status["keys"]["max"]),
            number(&top["overshoot"]),
            figure(unreported),
            word(&status["configuration"]["version"]),
        );
        let head_tone = if ready && !partitioned {
            Tone::Head
        } else {
            Tone::Alarm
        };
        let faults = status["configuration"]["last_reload_faults"].as_array();
        let faults = faults.map_or(&[][..], Vec::as_slice);
        let shown = faults.iter().take(FAULTS_MAX);
        let shown = shown.map(|fault| format!("last reload refused: {}", word(fault)));
        let more = faults.len().saturating_sub(FAULTS_MAX);
        let more = (more > 0).then(|| format!("and {more} more faults"));
        [
            (head, head_tone),
            (decisions, Tone::Plain),
            (held, Tone::Plain),
        ]
        .into_iter()
        .chain(shown.chain(more).map(|fault| (fault, Tone::Alarm)))
        .map(|(text, tone)| self.line(text, tone))
        .collect()
    }

    fn rules(&self) -> Vec<ViewLine> {
        let name_columns = self.name_columns(LIMIT_COLUMNS + 3 * NUMBER_COLUMNS);
        let row = |words: [&str; 5]| {
            let [name, limit, allow, deny, left] = words;
            format!(
                "{} {}{allow:>NUMBER_COLUMNS$}{deny:>NUMBER_COLUMNS$}{left:>NUMBER_COLUMNS$}",
                fit(name, name_columns),
                fit(limit, LIMIT_COLUMNS),
            )
        };
        let head = row(["RULE", "LIMIT", "ALLOW/S", "DENY/S", "LEFT"]);
        let mut lines = vec![self.line(head, Tone::Head)];
        for rule in self.top["rules"].as_array().into_iter().flatten() {
            let (now, before) = (&rule["decisions"], self.rates.rule(&rule["rule"]));
            let shadow = rule["shadow_mode"] == true;
            let decision = if shadow { "shadow_deny" } else { "deny" };
            let limit = limit(&rule["limit"]);
            let text = row([
                &word(&rule["rule"]),
                &if shadow {
                    format!("{limit} (shadow)")
                } else {
                    limit
                },
                &self.rates.of(&now["allow"], &before["allow"]),
                &self.rates.of(&now[decision], &before[decision]),
                &rule["remaining"].as_f64().map_or("-".to_owned(), figure),
            ]);
            lines.push(self.line(text, Tone::Plain));
        }
        lines
    }

    /// As many lines of the rules as there is room for, and how many rules are left out.
    fn shortened(&self, mut rules: Vec<ViewLine>, room: usize) -> Vec<ViewLine> {
        let unread = self.top["rules_left_out"].as_u64().unwrap_or_default();
        if unread > 0 || rules.len() > room {
            let shown = rules.len().min(room.saturating_sub(1));
            let left_out = (rules.len() - shown) as u64 + unread;
            rules.truncate(shown);
            let text = format!("and {} rules that deny less", figure(left_out as f64));
            rules.push(self.line(text, Tone::Plain));
        }
        rules
    }

    fn keys(&self) -> Vec<ViewLine> {
        let names = self.name_columns(2 * NUMBER_COLUMNS);
        let half = names / 2;
        let row = |key: &str, rule: &str, denied: &str| {
            let denied = format!("{denied:>0$}", 2 * NUMBER_COLUMNS);
            format!("{} {}{denied}", fit(key, half), fit(rule, names - half))
        };
        let recent = seconds(&self.top["recent"]).map_or("-".to_owned(), length);
        let title = format!("DENIED MOST IN {}", recent.to_uppercase());
        let mut lines = vec![self.line(row(&title, "RULE", "DENIED"), Tone::Head)];
        let mut keys: Vec<(u64, String)> = Vec::new();
        for rule in self.top["rules"].as_array().into_iter().flatten() {
            for key in rule["keys"].as_array().into_iter().flatten() {
                let count = |field: &str| key[field].as_u64().unwrap_or_default();
                let (most, error) = (count("denied"), count("error"));
                let denied = match error {
                    0 => figure(most as f64),
                    _ => format!(
                        "{} to {}",
                        figure(most.saturating_sub(error) as f64),
                        figure(most as f64)
                    ),
                };
                keys.push((most, row(&named(key), &word(&rule["rule"]), &denied)));
            }
        }
        if keys.is_empty() {
            lines.push(self.line("nobody".to_owned(), Tone::Plain));
        }
        // The sort is stable: keys with the same number keep their order.
        keys.sort_by_key(|(denied, _)| std::cmp::Reverse(*denied));
        lines.extend(
            keys.into_iter()
                .map(|(_, text)| self.line(text, Tone::Plain)),
        );
        lines
    }

    fn name_columns(&self, others: usize) -> usize {
        let left = self.columns.saturating_sub(others + 1);
        left.max(NAME_COLUMNS_MIN)
    }

    fn line(&self, text: String, tone: Tone) -> ViewLine {
        let text = printable(&text);
        let text = match text.char_indices().nth(self.columns) {
            Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
            None => text.trim_end().to_owned(),
        };
        ViewLine { text, tone }
    }
}

fn store(status: &Value) -> String {
    let store = &status["store"];
    let circuit = word(&store["link"]);
    let link = match circuit.as_str() {
        "none" => return "no store: limits alone".to_owned(),
        "closed" => "connected",
        "half_open" => "reconnecting",
        "open" => "unreachable",
        other => other,
    };
    let answered = match seconds(&store["staleness"]) {
        Some(ago) => format!("answered {} ago", length(ago)),
        None => "not answered yet".to_owned(),
    };
    let partitioned = match store["partitioned"] == true {
        true => ", partitioned",
        false => "",
    };
    let pods = word(&status["pods"]);
    format!("store {link}, {answered}{partitioned}, pods {pods}")
}

/// The entries of a key, or its name if the entries are not shown.
fn named(key: &Value) -> String {
    let Some(entries) = key["entries"].as_array() else {
        return word(&key["key"]);
    };
    let pair = |entry: &Value| format!("{}={}", word(&entry["key"]), word(&entry["value"]));
    entries.iter().map(pair).collect::<Vec<_>>().join(" ")
}

/// A text of the answer as it is, any other value as JSON.
fn word(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    }
}

fn limit(limit: &Value) -> String {
    let (Some(requests), Some(unit)) =
        (limit["requests_per_unit"].as_f64(), limit["unit"].as_str())
    else {
        return "-".to_owned();
    };
    let unit = unit.to_ascii_lowercase();
    let per = match limit["unit_multiplier"].as_u64() {
        Some(times) if times > 1 => format!("{times} {unit}s"),
        Some(_) | None => unit,
    };
    let burst = limit["burst"].as_f64().filter(|burst| *burst != requests);
    let burst = burst.map(|burst| format!(" burst {}", figure(burst)));
    format!("{}/{per}{}", figure(requests), burst.unwrap_or_default())
}

/// `text` in exactly so many columns, cut if it is longer.
fn fit(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => {
            let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
            format!("{kept}…")
        }
        false => format!("{text:<columns$}"),
    }
}

fn seconds(length: &Value) -> Option<f64> {
    length.as_str()?.strip_suffix('s')?.parse().ok()
}

fn length(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{} us", figure(s * 1e6)),
        s if s < 1.0 => format!("{} ms", figure(s * 1e3)),
        s if s < 120.0 => format!("{} s", figure(s)),
        s => format!("{} min", figure(s / 60.0)),
    }
}

/// A number as people write it: one decimal if it is small, and commas between thousands.
fn figure(number: f64) -> String {
    if number < 99.95 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests;
