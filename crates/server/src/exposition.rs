//! [`Page`]: Prometheus metrics, in the text format or as OpenMetrics.

use std::fmt::{Display, Write};

use axum::http::{HeaderMap, header};

/// Exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format the client prefers (`Accept`); the text format by default.
    pub(crate) fn accepted(headers: &HeaderMap) -> Format {
        let (mut open, mut text) = (0.0f32, 0.0f32);
        for value in headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()) {
            for range in value.split(',') {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
                let weight = parts.find_map(|p| p.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0f32);
                match kind.as_str() {
                    "application/openmetrics-text" => open = open.max(weight),
                    "text/plain" | "text/*" => text = text.max(weight),
                    _ => {}
                }
            }
        }
        if open > 0.0 && open >= text { Format::OpenMetrics } else { Format::Text }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page of metrics. Those named `vllm:…` get labels for the model and the engine.
#[derive(Debug)]
pub(crate) struct Page {
    /// Metrics in the order in which they first came: models have the same ones, whose samples must stand together.
    families: Vec<Family>,
    format: Format,
    /// Model that the next samples are of.
    model: Option<String>,
}

/// A metric with all its samples.
#[derive(Debug)]
struct Family {
    name: String,
    text: String,
}

/// Further labels of a sample.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    pub(crate) fn new(format: Format) -> Page {
        Page { families: Vec::new(), format, model: None }
    }

    /// The samples that follow are of this model, or of the server as a whole.
    pub(crate) fn of_model(&mut self, model: Option<&str>) {
        self.model = model.map(escaped);
    }

    /// The whole page.
    pub(crate) fn finish(self) -> String {
        let mut text: String = self.families.into_iter().map(|family| family.text).collect();
        if self.format == Format::OpenMetrics {
            text += "# EOF\n";
        }
        text
    }

    pub(crate) fn gauge(&mut self, name: &str, what: &str, value: impl Display) {
        self.gauges(name, what, [(&[] as Labels<'_>, value)]);
    }

    pub(crate) fn gauges<'a, V: Display>(
        &mut self,
        name: &str,
        what: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, V)>,
    ) {
        let at = self.family(name, "gauge", what);
        samples.into_iter().for_each(|(labels, value)| self.sample(at, name, labels, value));
    }

    /// A counter; `name` is without `_total`.
    pub(crate) fn counter(&mut self, name: &str, what: &str, value: impl Display) {
        self.counters(name, what, [(&[] as Labels<'_>, value)]);
    }

    pub(crate) fn counters<'a, V: Display>(
        &mut self,
        name: &str,
        what: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, V)>,
    ) {
        let total = format!("{name}_total");
        let at = self.family(if self.format == Format::Text { &total } else { name }, "counter", what);
        samples.into_iter().for_each(|(labels, value)| self.sample(at, &total, labels, value));
    }

    /// A histogram. `counts` has one entry per bound, and one for values above all.
    pub(crate) fn histogram(&mut self, name: &str, what: &str, bounds: &[f64], counts: &[u64], sum: f64) {
        let at = self.family(name, "histogram", what);
        let mut all = 0;
        // `1.0` and not `1`: OpenMetrics requires it, and other exporters of these names do the same.
        let bounds = bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            all += count;
            self.sample(at, &format!("{name}_bucket"), &[("le", &bound)], all);
        }
        self.sample(at, &format!("{name}_sum"), &[], sum);
        self.sample(at, &format!("{name}_count"), &[], all);
    }

    /// Index of a metric, which begins with its description.
    fn family(&mut self, name: &str, kind: &str, what: &str) -> usize {
        if let Some(at) = self.families.iter().position(|family| family.name == name) {
            return at;
        }
        let text = format!("# HELP {name} {what}\n# TYPE {name} {kind}\n");
        self.families.push(Family { name: name.to_owned(), text });
        self.families.len() - 1
    }

    fn sample(&mut self, at: usize, name: &str, labels: Labels<'_>, value: impl Display) {
        let mut all = String::new();
        if let Some(model) = self.model.as_ref().filter(|_| name.starts_with("vllm:")) {
            let _ = write!(all, "model_name=\"{model}\",engine=\"0\"");
        }
        for (label, value) in labels {
            let comma = if all.is_empty() { "" } else { "," };
            let _ = write!(all, "{comma}{label}=\"{}\"", escaped(value));
        }
        let Some(Family { text, .. }) = self.families.get_mut(at) else { return };
        // Writing to a string does not fail.
        let _ = match all.is_empty() {
            true => writeln!(text, "{name} {value}"),
            false => writeln!(text, "{name}{{{all}}} {value}"),
        };
    }
}

/// Escapes a label value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_accepted() {
        let format = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            Format::accepted(&headers)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(format(prometheus), Format::OpenMetrics);
        assert_eq!(format("Application/OpenMetrics-Text"), Format::OpenMetrics);
        assert_eq!(format("text/plain, application/openmetrics-text;q=0.5"), Format::Text);
        assert_eq!(format("application/openmetrics-text;q=0"), Format::Text);
        assert_eq!(format("*/*"), Format::Text);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Text);
    }
}
