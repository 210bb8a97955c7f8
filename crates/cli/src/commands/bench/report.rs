//! Output of `tallow bench`: a Markdown table, or llama-bench's fields as CSV, JSON or SQL.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use tallow_models::Model;

use super::super::print;
use super::{Test, label, model_type, parameters, weights};
use crate::args::Table;
use crate::devices::{Speeds, cpu_name};
use crate::single_runner::Setup;
use crate::{Failed, build, clock, terminal};

/// One line of results.
pub(super) struct Row<'a> {
    pub name: &'a str,
    pub model: &'a Model,
    pub setup: Setup,
    pub test: Test,
    /// Nanoseconds of each run.
    pub samples: Vec<u64>,
    pub started: SystemTime,
    /// Peak speeds of the device, measured during the test.
    pub speeds: Speeds,
    /// Roofline in tokens per second.
    pub bound: f64,
    /// Label of the device.
    pub device: String,
}

/// Writes rows as they come.
pub(super) struct Report {
    table: Table,
    rows: usize,
    /// Widths of the table's columns.
    widths: [usize; 9],
    /// True if any test was faster than the memory can be read.
    in_cache: bool,
}

impl Report {
    /// `tests`: characters of the longest name of a test.
    pub(super) fn new(table: Table, tests: Option<usize>) -> Result<Report, Failed> {
        if table == Table::Json {
            print("[\n")?;
        }
        let mut widths = WIDTHS;
        widths[TEST] = widths[TEST].max(tests.unwrap_or(0));
        Ok(Report { table, rows: 0, widths, in_cache: false })
    }

    /// True if a person reads the output as it comes.
    pub(super) fn is_shown(&self) -> bool {
        self.table == Table::Md
    }

    pub(super) fn row(&mut self, row: &Row<'_>) -> Result<(), Failed> {
        let fields = fields(row);
        let first = self.rows == 0;
        self.rows += 1;
        match self.table {
            Table::Md => {
                let head = if first { markdown_head(&self.widths) } else { String::new() };
                self.in_cache |= is_in_cache(row);
                print(&(head + &markdown(row, &self.widths)))
            }
            Table::Csv => {
                let names = fields.keys().filter(|k| !k.starts_with("samples_")).cloned().collect::<Vec<_>>();
                let head = if first { names.join(",") + "\n" } else { String::new() };
                let values: Vec<String> = names.iter().map(|name| quoted(&fields[name.as_str()])).collect();
                print(&(head + &values.join(",") + "\n"))
            }
            Table::Json => {
                let text = format!("{:#}", Value::Object(fields));
                let indented: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
                print(&format!("{}{}", if first { "" } else { ",\n" }, indented.join("\n")))
            }
            Table::Jsonl => print(&format!("{}\n", Value::Object(fields))),
            Table::Sql => print(&sql(&fields, first)),
        }
    }

    pub(super) fn end(self) -> Result<(), Failed> {
        match self.table {
            Table::Json => print("\n]\n"),
            Table::Md if self.in_cache => print(
                "\nin cache: faster than the memory can be read, because the weights stay in the CPU's caches\n",
            ),
            Table::Md | Table::Csv | Table::Jsonl | Table::Sql => Ok(()),
        }
    }
}

fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

const HEADS: [&str; 9] =
    ["model", "size", "params", "backend", "threads", "test", "t/s", "read GB/s", "of roofline"];

fn markdown_head(widths: &[usize; 9]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let names = HEADS.iter().zip(*widths).enumerate().map(|(i, (name, w))| match i {
        0 | 3 => format!("{name:<w$}"),
        _ => format!("{name:>w$}"),
    });
    let names = names.collect();
    let rules = widths.iter().enumerate().map(|(i, w)| match i {
        0 | 3 => "-".repeat(*w),
        _ => "-".repeat(w - 1) + ":",
    });
    line(names) + &line(rules.collect())
}

const WIDTHS: [usize; 9] = [30, 10, 10, 10, 7, 15, 20, 9, 11];
/// Index of the column of tests.
const TEST: usize = 5;

/// True if decode was faster than the memory can be read.
fn is_in_cache(row: &Row<'_>) -> bool {
    let (mean, _) = mean_and_deviation(&speeds(row));
    row.test.generated > 0 && is_cpu(row) && mean > row.bound
}

fn markdown(row: &Row<'_>, widths: &[usize; 9]) -> String {
    let (mean, sd) = mean_and_deviation(&speeds(row));
    let name = terminal::sanitized(&model_type(row.model)).into_owned();
    let name = match name.char_indices().nth(widths[0] - 1) {
        Some((at, _)) if name.chars().count() > widths[0] => format!("{}…", &name[..at]),
        _ => name,
    };
    let cells = [
        name,
        weights(row.model),
        params(parameters(row.model)),
        if is_cpu(row) { row.setup.cpu.isa.to_string() } else { short(&row.device).to_owned() },
        row.setup.cpu.threads.to_string(),
        label(row.test),
        format!("{mean:.2} ± {sd:.2}"),
        format!("{:.1}", row.speeds.read / 1e9),
        if is_in_cache(row) { "in cache".into() } else { format!("{:.0} %", 100.0 * mean / row.bound) },
    ];
    let cells = cells.iter().zip(*widths).enumerate().map(|(i, (cell, w))| match i {
        0 | 3 => format!("{cell:<w$}"),
        _ => format!("{cell:>w$}"),
    });
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// `596.05 M`, `7.24 B`
fn params(n: usize) -> String {
    let n = n as f64;
    if n < 1e9 { format!("{:.2} M", n / 1e6) } else { format!("{:.2} B", n / 1e9) }
}

/// An INSERT into the table of llama-bench's SQL output, after the CREATE TABLE if it is the first.
fn sql(fields: &Map<String, Value>, first: bool) -> String {
    let columns: Vec<(&String, &Value)> =
        fields.iter().filter(|(name, _)| !name.starts_with("samples_")).collect();
    let kind = |value: &Value| match value {
        Value::Bool(_) => "INTEGER",
        Value::Number(n) if n.is_f64() => "REAL",
        Value::Number(_) => "INTEGER",
        _ => "TEXT",
    };
    let literal = |value: &Value| match value {
        Value::Bool(is) => u8::from(*is).to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => format!("'{}'", other.to_string().replace('\'', "''")),
    };
    let table: Vec<String> =
        columns.iter().map(|(name, value)| format!("  {name} {}", kind(value))).collect();
    let head = format!("CREATE TABLE IF NOT EXISTS llama_bench (\n{}\n);\n\n", table.join(",\n"));
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<String> = columns.iter().map(|(_, value)| literal(value)).collect();
    let row = format!("INSERT INTO llama_bench ({}) VALUES ({});\n", names.join(", "), values.join(", "));
    if first { head + &row } else { row }
}

fn is_cpu(row: &Row<'_>) -> bool {
    short(&row.device) == "cpu"
}

/// `vulkan:0`, without the vendor's name for it.
fn short(device: &str) -> &str {
    device.split(' ').next().unwrap_or_default()
}

/// Tokens per second of each run.
fn speeds(row: &Row<'_>) -> Vec<f64> {
    row.samples.iter().map(|ns| row.test.tokens() as f64 * 1e9 / (*ns).max(1) as f64).collect()
}

/// Mean and sample standard deviation.
fn mean_and_deviation(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let squares: f64 = x.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, if x.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

/// Fields of a row, under the names of llama-bench; those after `samples_ts` are ours. Options of llama-bench that do
/// not exist here have the value that is in effect: a single GPU, mmap, flash attention.
fn fields(row: &Row<'_>) -> Map<String, Value> {
    let (setup, test, speeds) = (row.setup, row.test, speeds(row));
    let times: Vec<f64> = row.samples.iter().map(|ns| *ns as f64).collect();
    let ((avg_ns, sd_ns), (avg_ts, sd_ts)) = (mean_and_deviation(&times), mean_and_deviation(&speeds));
    let kv = setup.kv.to_string();
    let is_cpu = is_cpu(row);
    let fields = json!({
        "build_commit": build::COMMIT.unwrap_or("unknown"),
        "build_number": 0,
        "cpu_info": cpu_name(),
        "gpu_info": if is_cpu { "" } else { row.device.as_str() },
        "backends": if is_cpu { "CPU" } else { "GPU" },
        "model_filename": row.name,
        "model_type": model_type(row.model),
        "model_size": row.model.weight_bytes(),
        "model_n_params": parameters(row.model),
        "n_batch": setup.batch,
        "n_ubatch": setup.batch,
        "n_threads": setup.cpu.threads,
        "cpu_mask": "0x0",
        "cpu_strict": false,
        "poll": 0,
        "type_k": kv,
        "type_v": kv,
        "n_gpu_layers": if is_cpu { 0 } else { row.model.spec.layers.len() },
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": is_cpu,
        "flash_attn": true,
        "tensor_split": "0.00",
        "use_mmap": true,
        "embeddings": false,
        "n_prompt": test.prompt,
        "n_gen": test.generated,
        "n_depth": test.depth,
        "test_time": clock::seconds(row.started),
        "avg_ns": avg_ns as u64,
        "stddev_ns": sd_ns as u64,
        "avg_ts": avg_ts,
        "stddev_ts": sd_ts,
        "samples_ns": row.samples,
        "samples_ts": speeds,
        "n_sequences": test.sequences,
        "device": row.device,
        "isa": row.setup.cpu.isa.to_string(),
        "read_gbs": row.speeds.read / 1e9,
        "peak_gflops": row.speeds.flops / 1e9,
        "roofline": avg_ts / row.bound,
    });
    match fields {
        Value::Object(mut fields) => {
            fields.insert("lora".into(), test.adapted.into());
            fields
        }
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 6.0]), (4.0, 2.0));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }
}
