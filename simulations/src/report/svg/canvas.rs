//! The canvas of a plot, and its colours.
//!
//! The colours are those of Okabe and Ito, which readers with any kind of colour vision can tell apart.

use std::fmt::Write;

/// The width of every plot, in pixels.
pub const WIDTH: f64 = 840.0;
/// How many lines look different. After that the styles repeat.
const STYLES: usize = 6;
/// The width of an average letter, as a part of the font size.
const LETTER: f64 = 0.53;

/// The colours of a light page, which hold unless the reader prefers a dark one. Variables would be shorter, but not
/// every viewer knows them.
const STYLE: &str = "\
.tg text{font:12px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#57606a}\
.tg .title{font-size:15px;font-weight:600;fill:#1f2328}\
.tg .name{font-weight:600;fill:#1f2328}\
.tg .small{font-size:11px}\
.tg .panel{fill:#fff;stroke:#d0d7de}\
.tg .grid{stroke:#e1e6eb}\
.tg .axis{stroke:#afb8c1}\
.tg .asked{fill:#eff2f5}\
.tg .limit{stroke:#1f2328;stroke-dasharray:5 4}\
.tg .lead{stroke:#afb8c1}\
.tg .line{fill:none;stroke-width:1.5;stroke-linejoin:round}\
.tg .ours{stroke-width:2.5}\
.tg .halo{stroke:#fff;stroke-width:3;paint-order:stroke;stroke-linejoin:round}";
const STYLE_DARK: &str = "\
.tg text{fill:#9198a1}\
.tg .title,.tg .name{fill:#f0f6fc}\
.tg .panel{fill:#0d1117;stroke:#3d444d}\
.tg .grid{stroke:#2a313a}\
.tg .axis,.tg .lead{stroke:#59636e}\
.tg .asked{fill:#1a2029}\
.tg .limit{stroke:#f0f6fc}\
.tg .halo{stroke:#0d1117}";
/// The colour of tidegate, then those of the others: on a light page and on a dark one.
const COLOURS: [(&str, &str); STYLES + 1] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#d55e00"),
    ("#009e73", "#009e73"),
    ("#cc79a7", "#cc79a7"),
    ("#e69f00", "#e69f00"),
    ("#56b4e9", "#f0e442"),
    ("#000000", "#ffffff"),
];

/// A point, in pixels from the upper left.
pub type CanvasPoint = (f64, f64);

/// Which part of a text is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Collects the elements of a plot.
#[derive(Debug)]
pub struct Canvas {
    body: String,
}

impl Canvas {
    pub const fn new() -> Self {
        Self {
            body: String::new(),
        }
    }

    pub fn text(&mut self, (x, y): CanvasPoint, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = match class {
            "" => String::new(),
            class => format!(" class=\"{class}\""),
        };
        self.push(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{class}>{}</text>",
            escape(text)
        ));
    }

    /// A text that reads upward.
    pub fn upright(&mut self, (x, y): CanvasPoint, text: &str) {
        let text = escape(text);
        self.push(format_args!(
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\">{text}</text>"
        ));
    }

    pub fn line(&mut self, (x1, y1): CanvasPoint, (x2, y2): CanvasPoint, class: &str) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub fn polyline(&mut self, points: &[CanvasPoint], class: &str) {
        let points = joined(points);
        self.push(format_args!(
            "<polyline class=\"{class}\" points=\"{points}\"/>"
        ));
    }

    pub fn polygon(&mut self, points: &[CanvasPoint], class: &str) {
        let points = joined(points);
        self.push(format_args!(
            "<polygon class=\"{class}\" points=\"{points}\"/>"
        ));
    }

    /// Draws a mark. Marks differ in their shape as well as in their colour.
    pub fn mark(&mut self, (x, y): CanvasPoint, style: usize) {
        let class = format!("fill{style}");
        let r = if style == 0 { 6.0 } else { 5.0 };
        match style % 4 {
            0 => self.push(format_args!(
                "<circle class=\"{class} halo\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/>"
            )),
            1 => {
                let r = r * 0.9;
                let corners = [
                    (x - r, y - r),
                    (x + r, y - r),
                    (x + r, y + r),
                    (x - r, y + r),
                ];
                self.polygon(&corners, &format!("{class} halo"));
            }
            2 => {
                let r = r * 1.25;
                let corners = [(x, y - r), (x + r, y), (x, y + r), (x - r, y)];
                self.polygon(&corners, &format!("{class} halo"));
            }
            _ => {
                let r = r * 1.15;
                let corners = [(x, y - r), (x + r, y + r * 0.8), (x - r, y + r * 0.8)];
                self.polygon(&corners, &format!("{class} halo"));
            }
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// The finished plot, `height` pixels high. `label` is for readers who cannot see it.
    pub fn end(self, height: f64, label: &str) -> String {
        let (mut light, mut dark) = (STYLE.to_owned(), STYLE_DARK.to_owned());
        for (style, (on_light, on_dark)) in COLOURS.iter().enumerate() {
            for (css, colour) in [(&mut light, on_light), (&mut dark, on_dark)] {
                css.push_str(&format!(
                    ".tg .line{style}{{stroke:{colour}}}.tg .fill{style}{{fill:{colour}}}"
                ));
            }
        }
        let (right, bottom) = (WIDTH - 1.0, height - 1.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tg\" role=\"img\" aria-label=\"{}\" \
             width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
             <style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>\n\
             <rect class=\"panel\" x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"6\"/>\n{}</svg>\n",
            escape(label),
            self.body,
        )
    }
}

fn joined(points: &[CanvasPoint]) -> String {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    points.join(" ")
}

/// The style of each of `names`: 0 for the first one that begins with `tidegate`.
pub fn styles<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
    let (mut ours, mut others) = (false, 0);
    let style = |name: &str| match name.starts_with("tidegate") && !ours {
        true => {
            ours = true;
            0
        }
        false => {
            others += 1;
            (others - 1) % STYLES + 1
        }
    };
    names.into_iter().map(style).collect()
}

/// The approximate width of a text with this font size: fonts differ, and none is loaded.
pub fn wide(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// `text` with every special character escaped.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML does not permit control characters.
            sign if sign.is_control() => escaped.push(' '),
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{Anchor, Canvas, escape, styles};
    use crate::report::samples::check_well_formed;

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape("<a href='x'>&\"\u{0}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot; "
        );
    }

    #[test]
    fn every_shape_is_well_formed() {
        let mut canvas = Canvas::new();
        canvas.text((1.0, 2.0), Anchor::End, "", "<&>");
        canvas.upright((1.0, 2.0), "<&>");
        canvas.line((1.0, 2.0), (3.0, 4.0), "axis");
        canvas.polyline(&[(1.0, 2.0), (3.0, 4.0)], "line line1");
        for style in 0..5 {
            canvas.mark((1.0, 2.0), style);
        }
        check_well_formed(&canvas.end(100.0, "\"<&>"));
    }

    #[test]
    fn only_one_line_is_ours() {
        assert_eq!(
            styles(["a", "tidegate", "tidegate without news", "b"]),
            [1, 0, 2, 3]
        );
        assert_eq!(styles(["a"; 8]), [1, 2, 3, 4, 5, 6, 1, 2]);
    }
}
