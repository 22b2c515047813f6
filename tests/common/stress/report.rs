//! What a stress run has met.

use std::ops::AddAssign;

use serde_json::{Value, json};
use streampool::Stats;

macro_rules! report {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Report {
            $(pub(crate) $name: u64,)*
        }

        impl Report {
            pub(crate) fn to_json(self) -> Value {
                json!({$(stringify!($name): self.$name,)*})
            }
        }

        impl AddAssign for Report {
            fn add_assign(&mut self, other: Report) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

report! {
    programs,
    operations,
    stamps,
    checks,
    passed_on,
    out_of_memory,
    streams_made,
    reused_handles,
    retired,
    scopes,
    releases,
    hits,
    covered,
    asked,
    gathered,
    early_steals,
    late_steals,
    growths,
    ladders,
    stream_waits,
    mismatches,
}

impl Report {
    /// What one pool has counted.
    pub(super) fn add_stats(&mut self, stats: &Stats) {
        self.hits += stats.hits;
        self.covered += stats.covered;
        self.asked += stats.asked;
        self.gathered += stats.gathered;
        self.early_steals += stats.early_steals;
        self.late_steals += stats.late_steals;
        self.growths += stats.growths;
        self.ladders += stats.ladders;
        self.stream_waits += stats.calls.stream_waits;
    }

    /// What a run that is to prove something must have met, and has not.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        let wanted = [
            ("hits", self.hits),
            ("covered", self.covered),
            ("early_steals", self.early_steals),
            ("late_steals", self.late_steals),
            ("growths", self.growths),
            ("ladders", self.ladders),
            ("out_of_memory", self.out_of_memory),
            ("reused_handles", self.reused_handles),
            ("retired", self.retired),
            ("scopes", self.scopes),
            ("passed_on", self.passed_on),
        ];
        wanted.into_iter().filter(|state| state.1 == 0).map(|state| state.0).collect()
    }
}
