//! The accounts as text: a table that lines up, for a person.

use std::fmt;

use super::{Stats, StreamStats};

const MIB: f64 = (1 << 20) as f64;

/// A line of a table: what, how much, the share that it is of something above, and what belongs to it.
struct Line<'a> {
    label: &'a str,
    value: String,
    /// Part and whole.
    share: Option<(u64, u64)>,
    note: String,
}

impl<'a> Line<'a> {
    fn size(label: &'a str, bytes: u64) -> Line<'a> {
        Line { label, value: mib(bytes), share: None, note: String::new() }
    }

    fn count(label: &'a str, count: u64) -> Line<'a> {
        Line { label, value: count.to_string(), share: None, note: String::new() }
    }

    fn of(mut self, part: u64, whole: u64) -> Line<'a> {
        self.share = Some((part, whole));
        self
    }

    fn note(mut self, note: String) -> Line<'a> {
        self.note = note;
        self
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = match self.share {
            Some((part, whole)) if whole > 0 => {
                format!("{:.1}%", part as f64 / whole as f64 * 100.0)
            }
            _ => String::new(),
        };
        let line = format!("{:<24}{:>14}{share:>8}  {}", self.label, self.value, self.note);
        f.write_str(line.trim_end())
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

fn write_lines(f: &mut fmt::Formatter<'_>, lines: &[Line<'_>]) -> fmt::Result {
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            f.write_str("\n")?;
        }
        write!(f, "{line}")?;
    }
    Ok(())
}

/// Calls by verb are told where there are any; everything else always, so that two tables can be laid
/// side by side.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |bytes| format!("at most {}", mib(bytes));
        let granules = match self.granules {
            0 => String::new(),
            count => format!(", {count} granules"),
        };
        let part = |label, bytes| Line::size(label, bytes).of(bytes, self.reserved);
        let asked = self.hits + self.misses;
        let served = |label, count| Line::count(label, count).of(count, asked);
        let mut lines = vec![
            Line::size("reserved", self.reserved).note(most(self.peak_reserved) + &granules),
            part("  in use", self.in_use).note(format!(
                "{}, {} buffers",
                most(self.peak_in_use),
                self.live
            )),
            part("  free, clean", self.free_clean),
            part("  free, pending", self.free_pending)
                .note(format!("{} on lists", mib(self.on_lists))),
            part("  in transit", self.in_transit),
            part("  quarantined", self.quarantined),
            Line::size("largest free", self.largest_free),
            Line::count("allocations", asked)
                .note(format!("on {} streams, {} frees", self.streams, self.frees)),
            served("  hits", self.hits),
            served("  covered", self.covered),
            served("  asked", self.asked),
            served("  gathered", self.gathered),
            served("  early steals", self.early_steals),
            served("  late steals", self.late_steals),
            served("  synchronized", self.synchronized),
            served("  growths", self.growths),
            served("  ladders", self.ladders),
            Line::count("granules re-mapped", self.remapped),
            Line::count("granules revived", self.revived),
            Line::count("stray errors", self.stray_errors),
            Line::count("driver calls", self.calls.total()),
        ];
        let verbs: Vec<(String, u64)> = self.calls.by_verb().collect();
        lines.extend(verbs.iter().map(|(verb, count)| Line::count(verb, *count)));
        write_lines(f, &lines)
    }
}

impl fmt::Display for StreamStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = self.hits + self.misses;
        let lines = [
            Line::size("in use", self.in_use).note(format!(
                "at most {}, {} buffers",
                mib(self.peak_in_use),
                self.live
            )),
            Line::count("allocations", asked),
            Line::count("  hits", self.hits).of(self.hits, asked),
            Line::count("  misses", self.misses).of(self.misses, asked),
        ];
        write_lines(f, &lines)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::DriverCalls;

    #[test]
    fn an_account_is_a_table() {
        let stats = Stats {
            reserved: 400 << 20,
            peak_reserved: 512 << 20,
            in_use: 100 << 20,
            peak_in_use: 300 << 20,
            free_clean: 200 << 20,
            free_pending: 99 << 20,
            on_lists: 33 << 20,
            largest_free: (64 << 20) + (256 << 10),
            in_transit: 1 << 20,
            quarantined: 0,
            live: 17,
            streams: 8,
            granules: 25,
            hits: 900,
            misses: 100,
            frees: 983,
            covered: 60,
            asked: 20,
            gathered: 4,
            early_steals: 3,
            late_steals: 1,
            synchronized: 2,
            growths: 10,
            remapped: 5,
            revived: 6,
            ladders: 2,
            stray_errors: 1,
            calls: DriverCalls { event_records: 30, memory_calls: 75, ..DriverCalls::default() },
        };
        let text = "\
reserved                     400.0 MiB          at most 512.0 MiB, 25 granules
  in use                     100.0 MiB   25.0%  at most 300.0 MiB, 17 buffers
  free, clean                200.0 MiB   50.0%
  free, pending               99.0 MiB   24.8%  33.0 MiB on lists
  in transit                   1.0 MiB    0.2%
  quarantined                  0.0 MiB    0.0%
largest free                  64.2 MiB
allocations                       1000          on 8 streams, 983 frees
  hits                             900   90.0%
  covered                           60    6.0%
  asked                             20    2.0%
  gathered                           4    0.4%
  early steals                       3    0.3%
  late steals                        1    0.1%
  synchronized                       2    0.2%
  growths                           10    1.0%
  ladders                            2    0.2%
granules re-mapped                   5
granules revived                     6
stray errors                         1
driver calls                       105
  event records                     30
  memory calls                      75";
        assert_eq!(stats.to_string(), text);
    }

    #[test]
    fn an_account_of_nothing_has_no_shares() {
        let text = Stats::default().to_string();
        assert!(!text.contains('%') && !text.contains("NaN"), "{text}");
        assert!(text.ends_with("driver calls                         0"), "{text}");
    }

    #[test]
    fn a_streams_account_is_a_table() {
        let stats =
            StreamStats { in_use: 3 << 19, peak_in_use: 12 << 20, live: 2, hits: 30, misses: 10 };
        let text = "\
in use                         1.5 MiB          at most 12.0 MiB, 2 buffers
allocations                         40
  hits                              30   75.0%
  misses                            10   25.0%";
        assert_eq!(stats.to_string(), text);
    }
}
