//! Figures of a benchmark: what they are, and how they are shown and written.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client::Answered;
use crate::args::{BenchServe, Goal, Latency};

/// Results of one round of requests to a server.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub answered: Vec<Answered>,
    /// Why others failed.
    pub failed: Vec<String>,
    pub took: Duration,
}

/// Results of all rounds.
#[derive(Debug)]
pub(super) struct Figures {
    pub server: String,
    pub model: String,
    pub rounds: Vec<Round>,
}

/// Sums over all answers.
#[derive(Default)]
struct Totals {
    completed: usize,
    /// Tokens of prompts, and of answers.
    input: usize,
    output: usize,
    /// Answers that meet the goals of `--goodput`.
    good: usize,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Mean time of the tokens after the first, of an answer that has some.
fn per_token(answer: &Answered) -> Option<Duration> {
    let further = u32::try_from(answer.tokens).ok()?.checked_sub(1).filter(|n| *n > 0)?;
    Some(answer.took.saturating_sub(answer.first) / further)
}

/// The value below which a part of the sorted values lies, between two of them in proportion, as numpy has it.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = (part / 100.0).clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Latencies in milliseconds, in order.
struct Latencies {
    /// Their name in vLLM's files.
    name: &'static str,
    what: &'static str,
    sorted: Vec<f64>,
}

impl Latencies {
    fn new(name: &'static str, what: &'static str, values: impl Iterator<Item = Duration>) -> Latencies {
        let mut sorted: Vec<f64> = values.map(milliseconds).collect();
        sorted.sort_by(f64::total_cmp);
        Latencies { name, what, sorted }
    }

    fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len() as f64
    }

    fn deviation(&self) -> f64 {
        let mean = self.mean();
        (self.sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / self.sorted.len() as f64).sqrt()
    }

    /// Mean, median and percentiles, each with its name.
    fn rows(&self, percentiles: &[f64]) -> Vec<(String, f64)> {
        let mut rows =
            vec![("mean".to_owned(), self.mean()), ("median".to_owned(), percentile(&self.sorted, 50.0))];
        rows.extend(percentiles.iter().map(|p| (format!("p{p}"), percentile(&self.sorted, *p))));
        rows
    }
}

impl Figures {
    fn answered(&self) -> impl Iterator<Item = &Answered> {
        self.rounds.iter().flat_map(|round| &round.answered)
    }

    fn seconds(&self) -> f64 {
        self.rounds.iter().map(|round| round.took.as_secs_f64()).sum()
    }

    fn failed(&self) -> usize {
        self.rounds.iter().map(|round| round.failed.len()).sum()
    }

    /// Failures by reason, the most frequent first.
    pub(super) fn reasons(&self) -> Vec<(usize, &str)> {
        let mut reasons: Vec<(usize, &str)> = Vec::new();
        for why in self.rounds.iter().flat_map(|round| &round.failed) {
            match reasons.iter_mut().find(|(_, known)| known == why) {
                Some((n, _)) => *n += 1,
                None => reasons.push((1, why)),
            }
        }
        reasons.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        reasons
    }

    fn latencies(&self) -> [Latencies; 4] {
        [
            Latencies::new("ttft", "time to first token", self.answered().map(|a| a.first)),
            Latencies::new("tpot", "time per output token", self.answered().filter_map(per_token)),
            Latencies::new(
                "itl",
                "inter-token latency",
                self.answered().flat_map(|a| a.gaps.iter().copied()),
            ),
            Latencies::new("e2el", "end-to-end latency", self.answered().map(|a| a.took)),
        ]
    }

    fn is_good(answer: &Answered, goals: &[Goal]) -> bool {
        goals.iter().all(|Goal(latency, most)| {
            let time = match latency {
                Latency::Ttft => Some(answer.first),
                Latency::Tpot => per_token(answer),
                Latency::E2el => Some(answer.took),
            };
            time.is_none_or(|time| milliseconds(time) <= *most)
        })
    }

    fn totals(&self, args: &BenchServe) -> Totals {
        let mut totals = Totals::default();
        for answer in self.answered() {
            totals.completed += 1;
            totals.input += answer.prompt_tokens;
            totals.output += answer.tokens;
            totals.good += usize::from(Figures::is_good(answer, &args.goodput));
        }
        totals
    }

    /// Rows of the table: a name, and what stands there.
    fn rows(&self, args: &BenchServe) -> Vec<(String, String)> {
        let seconds = self.seconds();
        let shown = |value: f64| if value.is_finite() { format!("{value:.2}") } else { "-".to_owned() };
        let rate = |n: usize| shown(n as f64 / seconds);
        let Totals { completed, input, output, good } = self.totals(args);
        let mut rows: Vec<(String, String)> = [
            ("model", self.model.clone()),
            ("successful requests", completed.to_string()),
            ("failed requests", self.failed().to_string()),
            ("duration (s)", format!("{seconds:.2}")),
            ("input tokens", input.to_string()),
            ("generated tokens", output.to_string()),
            ("requests a second", rate(completed)),
            ("output tokens a second", rate(output) + &self.spread()),
            ("all tokens a second", rate(input + output)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        if !args.goodput.is_empty() {
            rows.push(("goodput (requests a second)".into(), rate(good)));
        }
        for latencies in self.latencies() {
            let heading = format!("{} (ms)", latencies.what);
            for (i, (name, value)) in latencies.rows(&args.metric_percentiles).into_iter().enumerate() {
                let heading = if i == 0 { heading.as_str() } else { "" };
                rows.push((format!("{heading:<28}{name:>6}"), shown(value)));
            }
        }
        rows
    }

    /// Least and most of several rounds.
    fn spread(&self) -> String {
        let speed =
            |r: &Round| r.answered.iter().map(|a| a.tokens).sum::<usize>() as f64 / r.took.as_secs_f64();
        let mut speeds: Vec<f64> = self.rounds.iter().map(speed).collect();
        speeds.sort_by(f64::total_cmp);
        match &speeds[..] {
            [least, .., most] => format!(" ({least:.2} to {most:.2})"),
            _ => String::new(),
        }
    }

    /// The figures under vLLM's names.
    pub(super) fn json(&self, args: &BenchServe) -> Value {
        let seconds = self.seconds();
        let Totals { completed, input, output, good } = self.totals(args);
        let fields = json!({
            "base_url": self.server,
            "model_id": self.model,
            "num_prompts": args.num_prompts,
            "num_rounds": args.rounds,
            "request_rate": args.request_rate.map_or(json!("inf"), |rate| json!(rate)),
            "max_concurrency": args.max_concurrency,
            "duration": seconds,
            "completed": completed,
            "failed": self.failed(),
            "total_input_tokens": input,
            "total_output_tokens": output,
            "request_throughput": completed as f64 / seconds,
            "request_goodput": (!args.goodput.is_empty()).then_some(good as f64 / seconds),
            "output_throughput": output as f64 / seconds,
            "total_token_throughput": (input + output) as f64 / seconds,
        });
        let mut fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        for latencies in self.latencies() {
            let name = latencies.name;
            for (statistic, value) in latencies.rows(&args.metric_percentiles) {
                fields.insert(format!("{statistic}_{name}_ms"), json!(value));
            }
            fields.insert(format!("std_{name}_ms"), json!(latencies.deviation()));
        }
        Value::Object(fields)
    }
}

/// A table with a column for each server.
pub(super) fn table(all: &[Figures], args: &BenchServe) -> String {
    let columns: Vec<Vec<(String, String)>> = all.iter().map(|figures| figures.rows(args)).collect();
    let head =
        std::iter::once(String::new()).chain(all.iter().map(|figures| figures.server.clone())).collect();
    let mut rows: Vec<Vec<String>> = vec![head];
    for (at, (name, _)) in columns.first().map(Vec::as_slice).unwrap_or_default().iter().enumerate() {
        let values = columns.iter().map(|column| column[at].1.clone());
        rows.push(std::iter::once(name.clone()).chain(values).collect());
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=all.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("   ").trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchServe,
    }

    fn answer(first: u64, gaps: &[u64], tokens: usize) -> Answered {
        let ms = Duration::from_millis;
        let gaps: Vec<Duration> = gaps.iter().map(|gap| ms(*gap)).collect();
        let took = ms(first) + gaps.iter().sum::<Duration>();
        Answered { prompt_tokens: 10, tokens, first: ms(first), gaps, took }
    }

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([1, 2, 4, 8], p)
        let of = |part| percentile(&[1.0, 2.0, 4.0, 8.0], part);
        assert_eq!([0.0, 25.0, 50.0, 75.0, 100.0].map(of), [1.0, 1.75, 3.0, 5.0, 8.0]);
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn a_column_for_each_server() {
        let args =
            Line::parse_from(["x", "--goodput", "ttft:100", "tpot:15", "--metric-percentiles", "90,99"]).args;
        let seconds = Duration::from_secs;
        let rounds = vec![
            Round {
                answered: vec![answer(50, &[10, 10], 3), answer(200, &[10], 2)],
                failed: vec![],
                took: seconds(1),
            },
            Round {
                answered: vec![answer(60, &[20, 20], 3)],
                failed: vec!["status 503".into()],
                took: seconds(1),
            },
        ];
        let one = Figures { server: "http://a".into(), model: "m".into(), rounds };
        let two = Figures { server: "http://b".into(), model: "m".into(), rounds: vec![Round::default()] };
        assert_eq!(one.reasons(), [(1, "status 503")]);
        let json = one.json(&args);
        assert_eq!(
            (&json["completed"], &json["failed"], &json["output_throughput"]),
            (&json!(3), &json!(1), &json!(4.0))
        );
        assert_eq!((&json["median_ttft_ms"], &json["mean_itl_ms"]), (&json!(60.0), &json!(14.0)));
        assert_eq!(json["request_goodput"], json!(0.5));
        insta::assert_snapshot!(table(&[one, two], &args), @r"
                                                        http://a   http://b
        model                                                  m          m
        successful requests                                    3          0
        failed requests                                        1          0
        duration (s)                                        2.00       0.00
        input tokens                                          30          0
        generated tokens                                       8          0
        requests a second                                   1.50          -
        output tokens a second               4.00 (3.00 to 5.00)          -
        all tokens a second                                19.00          -
        goodput (requests a second)                         0.50          -
        time to first token (ms)      mean                103.33          -
                                    median                 60.00          -
                                       p90                172.00          -
                                       p99                197.20          -
        time per output token (ms)    mean                 13.33          -
                                    median                 10.00          -
                                       p90                 18.00          -
                                       p99                 19.80          -
        inter-token latency (ms)      mean                 14.00          -
                                    median                 10.00          -
                                       p90                 20.00          -
                                       p99                 20.00          -
        end-to-end latency (ms)       mean                126.67          -
                                    median                100.00          -
                                       p90                188.00          -
                                       p99                207.80          -
        ");
    }
}
