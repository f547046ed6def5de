//! A report as one page that needs nothing else: no scripts, no fonts, no requests.

use super::markdown::{Block, MarkdownTable, Side, blocks};
use super::svg::escape;

/// A section of the page.
#[derive(Clone, Debug)]
pub struct ReportSection {
    pub title: String,
    pub why: String,
    /// Markdown: tables, and paragraphs between them.
    pub table: String,
    /// SVG.
    pub plots: Vec<String>,
}

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1f2328; --soft: #57606a; --line: #d0d7de; --page: #fff; --row: #f6f8fa;
  --good: #116329; --bad: #b3261e; --link: #0969da; }
@media (prefers-color-scheme: dark) { :root { --text: #f0f6fc; --soft: #9198a1; --line: #3d444d; --page: #0d1117;
  --row: #151b23; --good: #56d364; --bad: #ff8f86; --link: #58a6ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.55 -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .25rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h1, h2, td:first-child { overflow-wrap: anywhere; }
p { margin: .5rem 0 1rem; max-width: 46rem; }
p.note { color: var(--soft); font-size: .875rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
nav ul { list-style: none; margin: 0; padding: 0; columns: 14rem; }
nav li { padding: .1rem 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
svg { display: block; width: 100%; min-width: 600px; max-width: 840px; height: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .75rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tbody tr:nth-child(even) { background: var(--row); }
.right { text-align: right; }
.holds { color: var(--good); }
.fails { color: var(--bad); font-weight: 600; }
";

/// The whole page.
pub fn page(title: &str, sections: &[ReportSection]) -> String {
    let title = escape(title);
    let anchors = anchors(sections);
    let mut body = format!("<h1>{title}</h1>\n");
    if sections.len() > 1 {
        body.push_str("<nav aria-label=\"Contents\"><ul>\n");
        for (section, anchor) in sections.iter().zip(&anchors) {
            body.push_str(&format!(
                "<li><a href=\"#{anchor}\">{}</a></li>\n",
                escape(&section.title)
            ));
        }
        body.push_str("</ul></nav>\n");
    }
    for (section, anchor) in sections.iter().zip(&anchors) {
        body.push_str(&section.html(anchor));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

impl ReportSection {
    fn html(&self, anchor: &str) -> String {
        let mut html = format!(
            "<section id=\"{anchor}\">\n<h2>{}</h2>\n",
            escape(&self.title)
        );
        for paragraph in self
            .why
            .split("\n\n")
            .filter(|text| !text.trim().is_empty())
        {
            html.push_str(&format!("<p>{}</p>\n", escape(paragraph.trim())));
        }
        for plot in &self.plots {
            html.push_str(&format!("<div class=\"wide\">\n{plot}</div>\n"));
        }
        for block in blocks(&self.table) {
            match block {
                Block::Text(text) => {
                    html.push_str(&format!("<p class=\"note\">{}</p>\n", escape(&text)))
                }
                Block::Table(table) => html.push_str(&rows(&table)),
            }
        }
        html.push_str("</section>\n");
        html
    }
}

fn rows(table: &MarkdownTable) -> String {
    let mut html = "<div class=\"wide\"><table>\n<thead>".to_owned();
    html.push_str(&row(table, &table.head, "th"));
    html.push_str("</thead>\n<tbody>\n");
    for cells in &table.rows {
        html.push_str(&row(table, cells, "td"));
        html.push('\n');
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

fn row(table: &MarkdownTable, cells: &[String], tag: &str) -> String {
    let mut html = "<tr>".to_owned();
    for (cell, side) in cells.iter().zip(&table.sides) {
        let class = match (side, cell.as_str()) {
            (Side::Right, _) => " class=\"right\"",
            (Side::Left, "holds") => " class=\"holds\"",
            (Side::Left, "FAILS") => " class=\"fails\"",
            (Side::Left, _) => "",
        };
        html.push_str(&format!("<{tag}{class}>{}</{tag}>", escape(cell)));
    }
    html.push_str("</tr>");
    html
}

/// A unique name for each section that is valid in a URL.
fn anchors(sections: &[ReportSection]) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let signs = section.title.chars().map(|sign| match sign {
            sign if sign.is_ascii_alphanumeric() || sign == '_' => sign.to_ascii_lowercase(),
            _ => '-',
        });
        let mut anchor: String = signs.collect();
        if anchor.is_empty() || anchors.contains(&anchor) {
            anchor = format!("{anchor}-{}", index + 1);
        }
        anchors.push(anchor);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::{ReportSection, page};
    use crate::report::samples::check_well_formed;

    fn section(title: &str, table: &str) -> ReportSection {
        ReportSection {
            title: title.to_owned(),
            why: "Because a < b.\n\nAnd more.".to_owned(),
            table: table.to_owned(),
            plots: vec!["<svg></svg>\n".to_owned()],
        }
    }

    #[test]
    fn a_table_becomes_a_table() {
        let table = "| name | n |\n|:-----|--:|\n| <b>  | 7 |\n| c\\|d | – |\n\nA note.\n";
        let html = page("Title", &[section("one", table)]);
        check_well_formed(&html);
        assert!(html.contains("<tr><th>name</th><th class=\"right\">n</th></tr>"));
        assert!(html.contains("<tr><td>&lt;b&gt;</td><td class=\"right\">7</td></tr>"));
        assert!(html.contains("<td>c|d</td>"));
        assert!(html.contains("<p class=\"note\">A note.</p>"));
        assert!(html.contains("<p>Because a &lt; b.</p>\n<p>And more.</p>"));
    }

    #[test]
    fn verdicts_have_a_colour() {
        let table = "| verdict |\n|:---|\n| holds |\n| FAILS |\n";
        let html = page("Title", &[section("one", table)]);
        assert!(html.contains("<td class=\"holds\">holds</td>"));
        assert!(html.contains("<td class=\"fails\">FAILS</td>"));
    }

    #[test]
    fn several_sections_have_a_table_of_contents() {
        let html = page("a & b", &[section("A b!", ""), section("A b?", "")]);
        check_well_formed(&html);
        assert!(html.contains("<title>a &amp; b</title>"));
        assert!(html.contains("<a href=\"#a-b-\">A b!</a>"));
        assert!(html.contains("<section id=\"a-b--2\">"));
        assert!(!page("a", &[section("one", "")]).contains("<nav"));
    }

    #[test]
    fn nothing_is_requested() {
        let html = page("a", &[section("one", ""), section("two", "")]);
        for word in ["<script", "<link", "<img", "src=", "url(", "@import"] {
            assert!(!html.contains(word), "{word}");
        }
    }
}
