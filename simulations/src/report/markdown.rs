//! Markdown tables: written so that they are easy to read in a terminal too, and parsed again for the page.

/// To which side of its column a cell is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// A table of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkdownTable {
    pub sides: Vec<Side>,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// A table or a paragraph of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    Table(MarkdownTable),
    Text(String),
}

impl MarkdownTable {
    pub fn new(columns: &[(&str, Side)]) -> Self {
        Self {
            sides: columns.iter().map(|(_, side)| *side).collect(),
            head: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// The table as Markdown, every column as wide as its widest cell.
    pub fn markdown(&self) -> String {
        let escaped = |cells: &Vec<String>| cells.iter().map(|cell| escape(cell)).collect();
        let head: Vec<String> = escaped(&self.head);
        let rows: Vec<Vec<String>> = self.rows.iter().map(escaped).collect();
        let mut widths: Vec<usize> = head.iter().map(|cell| width(cell).max(3)).collect();
        for row in &rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = width(cell).max(*widest);
            }
        }
        let rule = self
            .sides
            .iter()
            .zip(&widths)
            .map(|(side, width)| match side {
                Side::Left => format!("|:{}", "-".repeat(width + 1)),
                Side::Right => format!("|{}:", "-".repeat(width + 1)),
            });
        let mut text = self.line(&head, &widths);
        text.extend(rule);
        text.push_str("|\n");
        for row in &rows {
            text.push_str(&self.line(row, &widths));
        }
        text
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut text = String::new();
        for ((cell, side), widest) in cells.iter().zip(&self.sides).zip(widths) {
            let space = " ".repeat(widest - width(cell));
            match side {
                Side::Left => text.push_str(&format!("| {cell}{space} ")),
                Side::Right => text.push_str(&format!("| {space}{cell} ")),
            }
        }
        text.push_str("|\n");
        text
    }
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

fn escape(cell: &str) -> String {
    cell.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('\n', " ")
}

/// The tables of `text`, and the paragraphs between them.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut paragraph = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let sides = lines
            .peek()
            .filter(|_| line.starts_with('|'))
            .and_then(|next| sides(next));
        if sides.is_none() && !line.trim().is_empty() {
            paragraph.push(line.trim());
            continue;
        }
        end(&mut paragraph, &mut blocks);
        let Some(sides) = sides else {
            continue;
        };
        lines.next(); // the line below the head
        let mut rows = Vec::new();
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            rows.push(cells(row));
        }
        let head = cells(line);
        blocks.push(Block::Table(MarkdownTable { sides, head, rows }));
    }
    end(&mut paragraph, &mut blocks);
    blocks
}

fn end(paragraph: &mut Vec<&str>, blocks: &mut Vec<Block>) {
    if !paragraph.is_empty() {
        blocks.push(Block::Text(paragraph.join(" ")));
        paragraph.clear();
    }
}

/// The alignment that the line below the head gives, or `None` if it is not such a line.
fn sides(line: &str) -> Option<Vec<Side>> {
    let cells = line
        .strip_prefix('|')?
        .trim_end()
        .strip_suffix('|')?
        .split('|')
        .map(str::trim);
    let side = |cell: &str| match (cell.trim_matches(':'), cell.ends_with(':')) {
        (dashes, _) if dashes.is_empty() || dashes.contains(|sign| sign != '-') => None,
        (_, true) => Some(Side::Right),
        (_, false) => Some(Side::Left),
    };
    cells.map(side).collect()
}

/// The cells of a row, unescaped.
fn cells(line: &str) -> Vec<String> {
    let mut cells = Vec::new();
    let mut cell = String::new();
    let mut signs = line.trim_end().chars().skip(1);
    while let Some(sign) = signs.next() {
        match sign {
            '|' => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            '\\' => cell.extend(signs.next()),
            _ => cell.push(sign),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::{Block, MarkdownTable, Side, blocks};

    fn table() -> MarkdownTable {
        let mut table = MarkdownTable::new(&[("scenario", Side::Left), ("%", Side::Right)]);
        table
            .rows
            .push(vec!["steady".to_owned(), "1.25".to_owned()]);
        table
            .rows
            .push(vec!["a|b\\c – d".to_owned(), "–".to_owned()]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "\
| scenario    |    % |
|:------------|-----:|
| steady      | 1.25 |
| a\\|b\\\\c – d |    – |
";
        assert_eq!(table().markdown(), expected);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let text = format!("Before,\nin two lines.\n\n{}\nAfter.\n", table().markdown());
        let before = Block::Text("Before, in two lines.".to_owned());
        let after = Block::Text("After.".to_owned());
        assert_eq!(blocks(&text), [before, Block::Table(table()), after]);
    }

    #[test]
    fn a_bar_alone_makes_no_table() {
        let text = "| no table\n| at all";
        assert_eq!(
            blocks(text),
            [Block::Text("| no table | at all".to_owned())]
        );
    }
}
