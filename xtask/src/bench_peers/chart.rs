//! Results as a chart: the fraction of the machine's limit that each program reaches, row by row.

use std::fmt::Write;

use super::results::Results;
use super::table::percent;

const WIDTH: f64 = 760.0;
/// x of the bars' start, and length of a bar at the limit.
const LEFT: f64 = 270.0;
const WHOLE: f64 = 400.0;
const TOP: f64 = 78.0;
const BAR: f64 = 11.0;
const PITCH: f64 = 32.0;

/// Colours for light and dark mode. The background is painted, so that either is readable anywhere.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}.small{font-size:11px;fill:#59636e}.end{text-anchor:end}.mid{text-anchor:middle}
.ground{fill:#ffffff}.grid{stroke:#d1d9e0}.limit{stroke:#59636e}.ours{fill:#0969da}.theirs{fill:#afb8c1}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.ground{fill:#0d1117}.grid{stroke:#3d444d}
.limit{stroke:#9198a1}.ours{fill:#4493f8}.theirs{fill:#656c76}}";

/// An SVG of the rows that have a limit.
pub(super) fn svg(results: &Results) -> String {
    let rows: Vec<(String, f64, f64)> = results
        .rows
        .iter()
        .filter_map(|row| {
            let theirs = row.fraction(&row.best_peer()?.runs)?;
            Some((row.title(results.machine.cores), row.fraction(&row.tallow)?, theirs))
        })
        .collect();
    // Where other programs also run, a result can exceed the raw read bandwidth measured in the same minute.
    let most = rows.iter().flat_map(|(_, ours, theirs)| [*ours, *theirs]).fold(1.0, f64::max);
    let bottom = TOP + PITCH * rows.len() as f64;
    let height = bottom + 44.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-label=\"Speed of Tallow and llama.cpp as fractions of what the machine allows\">\n\
         <style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">Speed as a fraction of what the machine allows</text>\n\
         <rect class=\"ours\" x=\"16\" y=\"41\" width=\"{BAR}\" height=\"{BAR}\"/><text x=\"33\" y=\"51\">Tallow</text>\n\
         <rect class=\"theirs\" x=\"88\" y=\"41\" width=\"{BAR}\" height=\"{BAR}\"/><text x=\"105\" y=\"51\">llama.cpp {}</text>\n",
        escaped(&results.machine.peer_commit)
    );
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let (x, class) = (LEFT + WHOLE * share / most, if quarter == 4 { "limit" } else { "grid" });
        let (above, label) = (TOP - 6.0, TOP - 10.0);
        let _ = writeln!(out, "<path class=\"{class}\" d=\"M{x:.1} {above}V{bottom}\"/>");
        let _ =
            writeln!(out, "<text class=\"small mid\" x=\"{x:.1}\" y=\"{label}\">{}</text>", percent(share));
    }
    for (i, (title, ours, theirs)) in rows.iter().enumerate() {
        let y = TOP + PITCH * i as f64;
        let (x, middle) = (LEFT - 10.0, y + BAR + 5.0);
        let _ = writeln!(out, "<text class=\"end\" x=\"{x}\" y=\"{middle}\">{}</text>", escaped(title));
        for (class, share, y) in [("ours", ours, y), ("theirs", theirs, y + BAR + 1.0)] {
            let (width, below) = (WHOLE * share / most, y + BAR - 1.5);
            let end = LEFT + width + 5.0;
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\"/>"
            );
            let _ = writeln!(
                out,
                "<text class=\"small\" x=\"{end:.1}\" y=\"{below}\">{}</text>",
                percent(*share)
            );
        }
    }
    let m = &results.machine;
    let foot = format!(
        "{}, {} cores. tg: generating, against the raw read of memory; pp: prompts, against the peak.",
        m.cpu, m.cores
    );
    let _ = writeln!(
        out,
        "<text class=\"small\" x=\"16\" y=\"{}\">{}</text>\n</svg>",
        bottom + 26.0,
        escaped(&foot)
    );
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::results::{sample, sample_results as results};
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_fractions_say() {
        let mut without = sample("serve", &[5.0], &[("", &[9.0])]);
        without.demand = None;
        let rows = vec![sample("tg<1>", &[50.0], &[("", &[75.0])]), without];
        let svg = svg(&results(rows));
        assert_eq!(svg.matches("class=\"ours\"").count(), 2, "{svg}");
        assert!(svg.contains("class=\"ours\" x=\"270\" y=\"78\" width=\"200.0\""), "{svg}");
        assert!(svg.contains("class=\"theirs\" x=\"270\" y=\"90\" width=\"300.0\""), "{svg}");
        assert!(svg.contains("tg&lt;1&gt;, m-Q4_0") && svg.contains(">50 %<"), "{svg}");
    }

    #[test]
    fn more_than_the_limit_still_fits() {
        let svg = svg(&results(vec![sample("tg", &[160.0], &[("", &[40.0])])]));
        assert!(svg.contains("y=\"78\" width=\"400.0\""), "{svg}");
        assert!(svg.contains("y=\"90\" width=\"100.0\""), "{svg}");
    }
}
