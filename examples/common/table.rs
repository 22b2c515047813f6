//! Tables that line up.

use std::fmt;

/// Columns under two-line headings; the first is words, the others are numbers.
pub(crate) struct Table {
    headings: Vec<[String; 2]>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. A heading's words before `|` are its upper line.
    pub(crate) fn new(headings: &[&str]) -> Table {
        let halves = |heading: &&str| match heading.split_once('|') {
            Some((upper, lower)) => [upper.to_owned(), lower.to_owned()],
            None => [String::new(), (*heading).to_owned()],
        };
        Table { headings: headings.iter().map(halves).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.headings.len(), "a cell for each column");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upper = self.headings.iter().map(|heading| heading[0].clone()).collect();
        let lower = self.headings.iter().map(|heading| heading[1].clone()).collect();
        let lines: Vec<&Vec<String>> = [&upper, &lower].into_iter().chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        for line in &lines {
            let mut text = String::new();
            for (column, cell) in line.iter().enumerate() {
                let width = width(column).unwrap_or(0);
                match column {
                    0 => text += &format!("{cell:<width$}"),
                    _ => text += &format!("  {cell:>width$}"),
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}
