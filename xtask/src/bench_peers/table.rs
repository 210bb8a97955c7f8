//! Results as text: the table for docs/benchmarks.md, and the sentence for README.md.

use std::fmt::Write;

use super::results::{OTHERS, Peak, Results, Row, Run, Spread, TIE, Unit, median};

const HEAD: &str = "\
| row | llama.cpp | Tallow | ratio | of the limit: llama.cpp, Tallow | raw read GB/s | peak Gop/s | others |
|---|---|---|---|---|---|---|---|
";

/// The generated part of docs/benchmarks.md.
pub(super) fn section(results: &Results) -> String {
    let m = &results.machine;
    let mut text = format!(
        "{}, {} cores, {} GiB, {}. Tallow {}, built with {}; llama.cpp {}, built with {}.\n\n{HEAD}",
        m.cpu,
        m.cores,
        m.memory,
        m.system,
        origins(results),
        m.rustc,
        m.peer_commit,
        m.peer_compiler
    );
    for row in &results.rows {
        text += &line(row, results);
    }
    let _ = write!(
        text,
        "\nMedians, with least and most, of tokens per second, or of milliseconds (ms) where less is better. The ratio says how \
         many times as fast Tallow is. llama.cpp has flash attention on; where \"no fa\" stands, it was faster without. The \
         limit is the raw read for generating and the peak for prompts, each of the same minute. \"!\": other processes \
         took more than {} of the machine in a run, three times over.\n\n{}\n",
        percent(OTHERS),
        sentence(results)
    );
    text
}

/// The commits and dates of the rows: `1234abcd of 2026-01-31`.
fn origins(results: &Results) -> String {
    let mut origins: Vec<String> = Vec::new();
    for row in &results.rows {
        let origin = format!("{} of {}", row.commit, row.date);
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }
    match origins.len() {
        0 | 1 => origins.concat(),
        // The file of results tells which row is from which.
        _ => format!("in several states ({})", origins.join(", ")),
    }
}

fn line(row: &Row, results: &Results) -> String {
    let peer = row.best_peer();
    let peer_runs = peer.map_or(&[][..], |setting| &setting.runs);
    let setting = peer.map(|setting| setting.name.as_str()).filter(|name| !name.is_empty());
    let middle =
        |value: fn(&super::results::Limits) -> f64| median(&row.limits.iter().map(value).collect::<Vec<_>>());
    let fractions = [peer_runs, &row.tallow].map(|runs| row.fraction(runs).map(percent));
    let fractions = match fractions {
        [Some(theirs), Some(ours)] => format!("{theirs}, {ours}"),
        _ => "–".into(),
    };
    let peak = row.limits.first().map_or("", |limits| match limits.peak {
        Peak::Int8 => "int8",
        Peak::Bf16 => "bf16",
        Peak::F32 => "f32",
    });
    let cells = [
        row.title(results.machine.cores),
        [values(peer_runs, row.id.unit).as_str()].into_iter().chain(setting).collect::<Vec<_>>().join(", "),
        values(&row.tallow, row.id.unit),
        row.ratio().map_or("–".into(), |ratio| format!("{ratio:.2}")),
        fractions,
        middle(|l| l.read_gbs).map_or("–".into(), |read| format!("{read:.1}")),
        middle(|l| l.peak_gops).map_or("–".into(), |ops| format!("{ops:.0} {peak}")),
        row.others().map_or("?".into(), |o| percent(o) + if o > OTHERS { " !" } else { "" }),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// `51.2 (50.1–52.0)`
fn values(runs: &[Run], unit: Unit) -> String {
    let Some(Spread { least, median, most }) = Spread::of(runs) else { return "–".into() };
    let digits = if median >= 100.0 { 0 } else { 1 };
    let unit = if unit == Unit::Milliseconds { " ms" } else { "" };
    format!("{median:.digits$}{unit} ({least:.digits$}–{most:.digits$})")
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Wins and losses, counted.
pub(super) fn sentence(results: &Results) -> String {
    let mut ratios: Vec<(f64, String)> = results
        .rows
        .iter()
        .filter_map(|row| Some((row.ratio()?, row.title(results.machine.cores))))
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some((worst, slowest)), Some((best, fastest))) = (ratios.first(), ratios.last()) else {
        return "Nothing has been measured yet.".into();
    };
    let faster = ratios.iter().filter(|(ratio, _)| *ratio > 1.0 + TIE).count();
    let slower = ratios.iter().filter(|(ratio, _)| *ratio < 1.0 / (1.0 + TIE)).count();
    let level = ratios.len() - faster - slower;
    format!(
        "On {} cores ({}), in {} measurements beside llama.cpp {}, Tallow is faster in {faster}, level (within {}) in \
         {level} and slower in {slower}: from {worst:.2} times as fast ({slowest}) to {best:.2} times ({fastest}).",
        results.machine.cores,
        results.machine.cpu,
        ratios.len(),
        results.machine.peer_commit,
        percent(TIE),
    )
}

/// Replaces the part of a text between two markers, each of which must occur once.
pub(super) fn between_markers(text: &str, content: &str) -> Result<String, String> {
    const MARKERS: [&str; 2] = ["<!-- bench-peers -->\n", "<!-- /bench-peers -->\n"];
    let parts = text.split_once(MARKERS[0]).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(MARKERS[1])?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or("has no lines <!-- bench-peers --> and <!-- /bench-peers -->")?;
    Ok(format!("{before}{}{}\n{}{after}", MARKERS[0], content.trim_end(), MARKERS[1]))
}

#[cfg(test)]
mod tests {
    use super::super::results::{sample, sample_results as results};
    use super::*;

    #[test]
    fn a_row_says_it_all() {
        let mut row =
            sample("pp512", &[50.0, 52.0, 51.0], &[("", &[90.0]), ("no fa", &[100.0, 101.0, 102.0])]);
        row.peer[1].runs[2].others = Some(0.08);
        row.id.threads = 1;
        let text = section(&results(vec![row]));
        let want = "| pp512, m-Q4_0, 1 thread | 101 (100–102), no fa | 51.0 (50.0–52.0) | 0.50 | 101 %, 51 % | 100.0 | \
                    1000 int8 | 8 % ! |\n";
        assert!(text.contains(want), "{text}");
        assert!(
            text.starts_with("Xeon, 2 cores, 24 GiB, linux x86_64. Tallow abc of 2026-01-31, built with"),
            "{text}"
        );
    }

    #[test]
    fn rows_without_a_limit_or_a_rival_are_shown_without() {
        let mut row = sample("serve", &[30.0], &[]);
        (row.demand, row.id.unit) = (None, Unit::Milliseconds);
        assert!(
            line(&row, &results(vec![])).starts_with("| serve, m-Q4_0 | – | 30.0 ms (30.0–30.0) | – | – |")
        );
    }

    #[test]
    fn wins_and_losses_are_counted() {
        let row = |test, ours| sample(test, &[ours], &[("", &[100.0])]);
        let rows = vec![row("a", 120.0), row("b", 105.0), row("c", 92.0), row("d", 60.0), row("e", 89.0)];
        let text = sentence(&results(rows));
        assert!(text.contains("faster in 1, level (within 10 %) in 2 and slower in 2"), "{text}");
        assert!(text.contains("from 0.60 times as fast (d, m-Q4_0) to 1.20 times (a, m-Q4_0)"), "{text}");
        assert_eq!(sentence(&results(vec![])), "Nothing has been measured yet.");
    }

    #[test]
    fn what_is_between_markers_is_replaced() {
        let text = "a\n<!-- bench-peers -->\nold\n<!-- /bench-peers -->\nb\n";
        let once = between_markers(text, "new\n\n").unwrap();
        assert_eq!(once, "a\n<!-- bench-peers -->\nnew\n<!-- /bench-peers -->\nb\n");
        assert_eq!(between_markers(&once, "new").unwrap(), once);
        assert!(between_markers("a <!-- bench-peers -->\n", "new").is_err());
    }

    #[test]
    fn the_pages_have_their_markers() {
        for page in ["README.md", "docs/benchmarks.md"] {
            let text = std::fs::read_to_string(crate::root().join(page)).unwrap();
            assert!(between_markers(&text, "").is_ok(), "{page}");
        }
    }
}
