//! Results: rows of rounds, kept as JSON, so that tables can be remade and parts be measured again.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// All measurements on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub machine: Machine,
    pub rows: Vec<Row>,
}

/// What all rows have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub cpu: String,
    pub cores: usize,
    /// In GiB, rounded.
    pub memory: u64,
    pub system: String,
    pub rustc: String,
    /// llama.cpp's commit.
    pub peer_commit: String,
    /// The compiler that llama.cpp was built with.
    pub peer_compiler: String,
}

/// The groups of rows that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Group {
    Decode,
    Prefill,
    Depth,
    Batch,
    Serve,
}

impl Group {
    pub(super) const ALL: [(&str, Group); 5] = [
        ("decode", Group::Decode),
        ("prefill", Group::Prefill),
        ("depth", Group::Depth),
        ("batch", Group::Batch),
        ("serve", Group::Serve),
    ];
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "tokens/s")]
    TokensPerSecond,
    #[serde(rename = "ms")]
    Milliseconds,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Id {
    pub group: Group,
    /// `tg128`
    pub test: String,
    /// `qwen3-0.6b-Q4_0`
    pub model: String,
    pub threads: usize,
    pub unit: Unit,
}

/// One benchmark, in rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub id: Id,
    /// Tallow's commit.
    pub commit: String,
    pub date: String,
    /// The least work per token, if it can be compared with the machine's limits (roofline).
    pub demand: Option<Demand>,
    /// The machine's limits in each round.
    pub limits: Vec<Limits>,
    pub tallow: Vec<Run>,
    /// llama.cpp, in one setting or in several.
    pub peer: Vec<Setting>,
}

/// llama.cpp's runs in one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Setting {
    pub name: String,
    pub runs: Vec<Run>,
}

/// One process's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub value: f64,
    /// The CPU share of other processes meanwhile, if the system reports it.
    pub others: Option<f64>,
}

/// The least work per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Demand {
    /// Bytes read.
    Bytes(f64),
    /// Multiplications and additions.
    Operations(f64),
}

/// The kind of multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Peak {
    Int8,
    Bf16,
    F32,
}

/// The machine's limits in a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Limits {
    pub read_gbs: f64,
    pub peak_gops: f64,
    pub peak: Peak,
}

/// CPU share of other processes above which a run is marked.
pub(super) const OTHERS: f64 = 0.03;
/// Relative differences below this are ties.
pub(super) const TIE: f64 = 0.10;

impl Results {
    /// Reads saved results.
    pub(super) fn read(path: &Path) -> Result<Results, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|e| format!("{}: {e}; it is no file that --save wrote", path.display()))
    }

    /// Saves them atomically.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = serde_json::to_string_pretty(self).map_err(|e| failed(&e))?;
        let beside = path.with_extension("part");
        std::fs::write(&beside, text + "\n").map_err(|e| failed(&e))?;
        std::fs::rename(&beside, path).map_err(|e| failed(&e))
    }

    /// Adds a row, replacing an earlier one with the same id. Rows are kept in the order of `order`.
    pub(super) fn take(&mut self, row: Row, order: &[Id]) {
        self.rows.retain(|earlier| earlier.id != row.id);
        self.rows.push(row);
        let place = |row: &Row| order.iter().position(|id| *id == row.id).unwrap_or(order.len());
        self.rows.sort_by_key(place);
    }
}

impl Row {
    /// llama.cpp's best setting.
    pub(super) fn best_peer(&self) -> Option<&Setting> {
        let value = |s: &&Setting| Spread::of(&s.runs).map_or(f64::NAN, |spread| spread.median);
        let settings = self.peer.iter().filter(|s| !s.runs.is_empty());
        match self.id.unit {
            Unit::TokensPerSecond => settings.max_by(|a, b| value(a).total_cmp(&value(b))),
            Unit::Milliseconds => settings.min_by(|a, b| value(a).total_cmp(&value(b))),
        }
    }

    /// Tallow's speed relative to llama.cpp's.
    pub(super) fn ratio(&self) -> Option<f64> {
        let (ours, theirs) = (Spread::of(&self.tallow)?.median, Spread::of(&self.best_peer()?.runs)?.median);
        Some(match self.id.unit {
            Unit::TokensPerSecond => ours / theirs,
            Unit::Milliseconds => theirs / ours,
        })
    }

    /// The fraction of the machine's limit in the same rounds.
    pub(super) fn fraction(&self, runs: &[Run]) -> Option<f64> {
        let demand = self.demand?;
        let fractions = runs.iter().zip(&self.limits).map(|(run, limits)| run.value / limits.bound(demand));
        median(&fractions.collect::<Vec<_>>())
    }

    /// The largest CPU share of other processes in any run, if known.
    pub(super) fn others(&self) -> Option<f64> {
        let runs = self.tallow.iter().chain(self.peer.iter().flat_map(|s| &s.runs));
        runs.filter_map(|run| run.others).reduce(f64::max)
    }

    /// `tg128, qwen3-0.6b-Q4_0`, and what is unusual about it.
    pub(super) fn title(&self, cores: usize) -> String {
        let Id { test, model, threads, .. } = &self.id;
        let threads = match *threads {
            1 => ", 1 thread".into(),
            n if n != cores => format!(", {n} threads"),
            _ => String::new(),
        };
        format!("{test}, {model}{threads}")
    }
}

impl Limits {
    /// Upper bound in tokens per second.
    fn bound(&self, demand: Demand) -> f64 {
        match demand {
            Demand::Bytes(bytes) => self.read_gbs * 1e9 / bytes,
            Demand::Operations(operations) => self.peak_gops * 1e9 / operations,
        }
    }
}

/// Minimum, median and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    /// Of runs, if there are any.
    pub(super) fn of(runs: &[Run]) -> Option<Spread> {
        let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Spread { least, median: median(&values)?, most })
    }
}

/// The median; of an even number of values, the mean of the middle two.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// A made-up row for the tests here and in the other modules.
#[cfg(test)]
pub(super) fn sample(test: &str, tallow: &[f64], peers: &[(&str, &[f64])]) -> Row {
    let runs =
        |values: &[f64]| values.iter().map(|value| Run { value: *value, others: Some(0.01) }).collect();
    let id = Id {
        group: Group::Decode,
        test: test.into(),
        model: "m-Q4_0".into(),
        threads: 2,
        unit: Unit::TokensPerSecond,
    };
    Row {
        id,
        commit: "abc".into(),
        date: "2026-01-31".into(),
        demand: Some(Demand::Bytes(1e9)),
        limits: vec![Limits { read_gbs: 100.0, peak_gops: 1000.0, peak: Peak::Int8 }; tallow.len()],
        tallow: runs(tallow),
        peer: peers
            .iter()
            .map(|(name, values)| Setting { name: (*name).into(), runs: runs(values) })
            .collect(),
    }
}

/// Made-up rows on a made-up machine.
#[cfg(test)]
pub(super) fn sample_results(rows: Vec<Row>) -> Results {
    let machine = Machine {
        cpu: "Xeon".into(),
        cores: 2,
        memory: 24,
        system: "linux x86_64".into(),
        rustc: "rustc 1.95.0".into(),
        peer_commit: "0c1e57098".into(),
        peer_compiler: "Clang 19.1.7".into(),
    };
    Results { machine, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[5.0, 1.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        let runs = [4.0, 8.0, 6.0].map(|value| Run { value, others: None });
        assert_eq!(Spread::of(&runs), Some(Spread { least: 4.0, median: 6.0, most: 8.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn the_best_setting_of_the_other_counts() {
        let mut row = sample("pp512", &[50.0, 60.0, 55.0], &[("fa", &[100.0, 100.0]), ("no fa", &[110.0])]);
        assert_eq!(row.best_peer().unwrap().name, "no fa");
        assert_eq!(row.ratio(), Some(0.5));
        // 100 GB/s over 1 GB per token: 100 tokens per second.
        assert_eq!(row.fraction(&row.tallow), Some(0.55));
        row.id.unit = Unit::Milliseconds;
        assert_eq!(row.best_peer().unwrap().name, "fa");
        assert_eq!(row.ratio(), Some(100.0 / 55.0));
    }

    #[test]
    fn each_round_is_held_against_its_own_limit() {
        let mut row = sample("tg1", &[25.0, 100.0], &[]);
        row.limits[1].read_gbs = 200.0;
        assert_eq!(row.fraction(&row.tallow), Some((0.25 + 0.5) / 2.0));
        row.demand = Some(Demand::Operations(1e10));
        assert_eq!(row.fraction(&row.tallow), Some((0.25 + 1.0) / 2.0));
        assert_eq!(row.ratio(), None);
    }

    #[test]
    fn rows_measured_anew_take_the_old_ones_place() {
        let order = ["a", "b", "c"].map(|test| sample(test, &[], &[]).id);
        let mut results = sample_results(Vec::new());
        for (test, value) in [("c", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0)] {
            results.take(sample(test, &[value], &[]), &order);
        }
        let values: Vec<f64> = results.rows.iter().map(|row| row.tallow[0].value).collect();
        assert_eq!(values, [4.0, 3.0, 1.0]);
        let path = std::env::temp_dir().join(format!("tallow-results-{}.json", std::process::id()));
        results.write(&path).unwrap();
        let read = Results::read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), results);
    }
}
