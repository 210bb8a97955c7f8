//! [`Shape`]: the work per token, from a model's file.
//!
//! It is read here and not asked of Tallow, so that both programs are compared with a number from neither.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::results::Demand;

/// Sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    /// Bytes of weights that are read to decode a token.
    bytes: f64,
    /// Weights that a prefill token is multiplied with, without the output head's.
    weights: f64,
    /// The output head's weights.
    head: f64,
    layers: f64,
    /// Columns of K and V in a layer, together.
    kv: f64,
    /// Columns of Q in a layer.
    q: f64,
    pub vocabulary: u32,
}

/// Bytes per element of the KV cache.
const CACHED: f64 = 2.0;

impl Shape {
    /// Demand per decoded token, if `sequences` sequences of `depth` tokens share a step.
    pub(super) fn decode(&self, depth: f64, sequences: f64) -> Demand {
        Demand::Bytes(self.bytes / sequences + self.layers * self.kv * CACHED * depth)
    }

    /// Mean demand per prefill token; only the last one is multiplied with the output head.
    pub(super) fn prefill(&self, prompt: f64) -> Demand {
        let attention = 4.0 * self.layers * self.q * prompt / 2.0;
        Demand::Operations(2.0 * self.weights + 2.0 * self.head / prompt + attention)
    }

    /// Reads the header of a GGUF file.
    pub(super) fn read(path: &Path) -> io::Result<Shape> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut from = Reader { from: BufReader::new(file), at: 0 };
        Shape::of(&from.header()?, length - from.at)
    }

    /// The shape of a file that has `data` bytes after its header.
    fn of(header: &Header, data: u64) -> io::Result<Shape> {
        let architecture = header.text("general.architecture")?;
        let number = |key: &str| header.number(&format!("{architecture}.{key}"));
        let (heads, width) = (number("attention.head_count")?, number("embedding_length")?);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
        let key = number("attention.key_length").unwrap_or(width / heads);
        let value = number("attention.value_length").unwrap_or(key);
        let used = match (number("expert_used_count"), number("expert_count")) {
            (Ok(used), Ok(all)) if all > 0.0 => used / all,
            _ => 1.0,
        };
        let mut ends: Vec<u64> = header.tensors.iter().map(|t| t.offset).chain([data]).collect();
        ends.sort_unstable();
        let tied = !header.tensors.iter().any(|t| t.name == "output.weight");
        let mut shape = Shape {
            bytes: 0.0,
            weights: 0.0,
            head: 0.0,
            layers: number("block_count")?,
            kv: 0.0,
            q: 0.0,
            vocabulary: 0,
        };
        (shape.kv, shape.q) = (kv_heads * (key + value), heads * key);
        for tensor in &header.tensors {
            let end = ends.get(ends.partition_point(|end| *end <= tensor.offset)).copied().unwrap_or(data);
            let share = if tensor.sizes.len() > 2 { used } else { 1.0 };
            let bytes = end.saturating_sub(tensor.offset) as f64 * share;
            let weights = tensor.sizes.iter().map(|n| *n as f64).product::<f64>() * share;
            let is_table = tensor.name == "token_embd.weight";
            if is_table {
                shape.vocabulary = tensor.sizes.get(1).and_then(|n| u32::try_from(*n).ok()).unwrap_or(0);
            }
            let is_head = tensor.name == "output.weight" || (is_table && tied);
            match (is_head, is_table) {
                (true, _) => (shape.bytes, shape.head) = (shape.bytes + bytes, weights),
                // Only one row of the embedding is read.
                (_, true) => {}
                _ if tensor.sizes.len() > 1 => {
                    (shape.bytes, shape.weights) = (shape.bytes + bytes, shape.weights + weights);
                }
                _ => shape.bytes += bytes,
            }
        }
        Ok(shape)
    }
}

/// A GGUF file's header.
#[derive(Default)]
struct Header {
    numbers: HashMap<String, f64>,
    texts: HashMap<String, String>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    sizes: Vec<u64>,
    offset: u64,
}

impl Header {
    fn number(&self, key: &str) -> io::Result<f64> {
        self.numbers.get(key).copied().ok_or_else(|| broken(&format!("has no number {key}")))
    }

    fn text(&self, key: &str) -> io::Result<&str> {
        self.texts.get(key).map(String::as_str).ok_or_else(|| broken(&format!("has no text {key}")))
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the model's file {what}"))
}

/// A file that is read from front to back.
struct Reader<R> {
    from: R,
    at: u64,
}

/// Upper bound for anything in a valid file: names, dimensions, entries.
const MOST: u64 = 1 << 24;

impl<R: Read> Reader<R> {
    fn header(&mut self) -> io::Result<Header> {
        if self.bytes::<4>()? != *b"GGUF" || !(2..=3).contains(&self.u32()?) {
            return Err(broken("is no GGUF of version 2 or 3"));
        }
        let (tensors, entries) = (self.count()?, self.count()?);
        let mut header = Header::default();
        for _ in 0..entries {
            let (key, kind) = (self.text()?, self.u32()?);
            match kind {
                8 => drop(header.texts.insert(key, self.text()?)),
                9 => self.skip_list()?,
                kind => drop(header.numbers.insert(key, self.number(kind)?)),
            }
        }
        for _ in 0..tensors {
            let (name, dimensions) = (self.text()?, self.u32()?);
            if dimensions > 8 {
                return Err(broken("has a tensor of more than 8 dimensions"));
            }
            let sizes = (0..dimensions).map(|_| self.u64()).collect::<io::Result<_>>()?;
            self.u32()?;
            header.tensors.push(Tensor { name, sizes, offset: self.u64()? });
        }
        let align = header.number("general.alignment").unwrap_or(32.0) as u64;
        self.at = self.at.next_multiple_of(align.clamp(1, 1 << 20));
        Ok(header)
    }

    fn number(&mut self, kind: u32) -> io::Result<f64> {
        Ok(match kind {
            0 | 1 | 7 => f64::from(self.bytes::<1>()?[0]),
            2 | 3 => f64::from(u16::from_le_bytes(self.bytes()?)),
            4 | 5 => f64::from(self.u32()?),
            6 => f64::from(f32::from_le_bytes(self.bytes()?)),
            10 | 11 => self.u64()? as f64,
            12 => f64::from_le_bytes(self.bytes()?),
            _ => return Err(broken("has a value of an unknown type")),
        })
    }

    /// Skips vocabularies and other lists.
    fn skip_list(&mut self) -> io::Result<()> {
        let (kind, count) = (self.u32()?, self.count()?);
        for _ in 0..count {
            match kind {
                8 => drop(self.text()?),
                kind => drop(self.number(kind)?),
            }
        }
        Ok(())
    }

    fn text(&mut self) -> io::Result<String> {
        let count = self.count()?;
        let mut text = Vec::new();
        (&mut self.from).take(count).read_to_end(&mut text)?;
        self.at += text.len() as u64;
        if text.len() as u64 != count {
            return Err(broken("ends within its head"));
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn count(&mut self) -> io::Result<u64> {
        let count = self.u64()?;
        if count > MOST { Err(broken("has a count that is not sound")) } else { Ok(count) }
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of a model with 2 layers, 4 heads of 8 columns, 2 KV heads, 2 of 8 experts used.
    fn head() -> Vec<u8> {
        let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
        let number = |key: &str, n: u32| {
            [text(&format!("x.{key}")), 4u32.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat()
        };
        let tensor = |name: &str, sizes: &[u64], offset: u64| {
            let sizes: Vec<u8> = [
                &(sizes.len() as u32).to_le_bytes()[..],
                &sizes.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>(),
            ]
            .concat();
            [text(name), sizes, 0u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
        };
        let list =
            [9u32.to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()].concat();
        [
            b"GGUF".to_vec(),
            3u32.to_le_bytes().to_vec(),
            4u64.to_le_bytes().to_vec(),
            8u64.to_le_bytes().to_vec(),
            [text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("x")].concat(),
            [text("tokenizer.list"), list, text("a"), text("bc")].concat(),
            number("block_count", 2),
            number("embedding_length", 32),
            number("attention.head_count", 4),
            number("attention.head_count_kv", 2),
            number("expert_count", 8),
            number("expert_used_count", 2),
            tensor("token_embd.weight", &[32, 100], 0),
            tensor("blk.0.ffn_down_exps.weight", &[32, 16, 8], 12_800),
            tensor("blk.0.attn_norm.weight", &[32], 29_184),
            tensor("blk.0.attn_q.weight", &[32, 32], 29_312),
        ]
        .concat()
    }

    fn shape(head: &[u8]) -> io::Result<Shape> {
        Shape::of(&Reader { from: head, at: 0 }.header()?, 33_408)
    }

    #[test]
    fn work_is_counted_from_the_sizes_in_a_file() {
        let shape = shape(&head()).unwrap();
        assert_eq!(shape.vocabulary, 100);
        // Tied embedding: the table is the head too. A quarter of the experts is read.
        let weights = 12_800.0 + 16_384.0 / 4.0 + 128.0 + 4096.0;
        assert_eq!(shape.decode(0.0, 1.0), Demand::Bytes(weights));
        // 2 layers of 2 KV heads of 8 columns of K and as many of V, two bytes each.
        assert_eq!(shape.decode(10.0, 2.0), Demand::Bytes(weights / 2.0 + 10.0 * 2.0 * 32.0 * 2.0));
        let multiplied = 2.0 * (1024.0 + 1024.0) + 2.0 * 3200.0 / 4.0 + 4.0 * 2.0 * 32.0 * 2.0;
        assert_eq!(shape.prefill(4.0), Demand::Operations(multiplied));
    }

    #[test]
    fn broken_files_are_refused() {
        let head = head();
        for end in 0..head.len() {
            assert!(shape(&head[..end]).is_err(), "{end}");
        }
        let mut wrong = head.clone();
        wrong[15] = 0xFF;
        assert!(shape(&wrong).is_err());
    }
}
