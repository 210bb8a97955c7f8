//! [`Pattern`]: a tensor name with placeholders for its indices.

/// An index that a tensor name may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// The layer of the model.
    Layer,
    /// The expert of an MoE.
    Expert,
    /// The attention head.
    Head,
}

impl Index {
    const ALL: [Index; 3] = [Index::Layer, Index::Expert, Index::Head];

    fn placeholder(self) -> &'static str {
        match self {
            Index::Layer => "{}",
            Index::Expert => "{expert}",
            Index::Head => "{head}",
        }
    }
}

/// Values of the indices. Those that a name does not have are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the variants of `Index`")]
pub struct Indices {
    pub layer: usize,
    pub expert: usize,
    pub head: usize,
}

impl From<usize> for Indices {
    fn from(layer: usize) -> Indices {
        Indices { layer, ..Indices::default() }
    }
}

impl Indices {
    fn get(&mut self, index: Index) -> &mut usize {
        match index {
            Index::Layer => &mut self.layer,
            Index::Expert => &mut self.expert,
            Index::Head => &mut self.head,
        }
    }
}

/// A tensor name in which `{}` stands for the layer's number, `{expert}` for the expert's, `{head}` for the head's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(&'static str);

impl Pattern {
    /// The pattern of that text.
    pub const fn new(text: &'static str) -> Pattern {
        Pattern(text)
    }

    /// Text of the pattern, with placeholders.
    pub fn text(self) -> &'static str {
        self.0
    }

    /// True if the name depends on an index.
    pub fn has(self, index: Index) -> bool {
        self.0.contains(index.placeholder())
    }

    /// The name for these indices.
    pub fn fill(self, mut at: Indices) -> String {
        let number =
            |name: String, index: Index| name.replace(index.placeholder(), &at.get(index).to_string());
        Index::ALL.into_iter().fold(self.0.to_owned(), number)
    }

    /// The indices for which [`fill`](Self::fill) gives that name, if there are any.
    pub fn parse(self, name: &str) -> Option<Indices> {
        let (mut at, mut pattern, mut name) = (Indices::default(), self.0, name);
        while let Some((before, index, after)) = first_placeholder(pattern) {
            let rest = name.strip_prefix(before)?;
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            *at.get(index) = number(&rest[..digits])?;
            (pattern, name) = (after, &rest[digits..]);
        }
        (name == pattern).then_some(at)
    }

    /// The layer of a tensor in whose name the layer's number stands in the same place, whatever follows it.
    pub(super) fn layer_of(self, name: &str) -> Option<usize> {
        let (before, _) = self.0.split_once(Index::Layer.placeholder())?;
        number(name.strip_prefix(before)?.split('.').next()?)
    }
}

fn first_placeholder(text: &str) -> Option<(&str, Index, &str)> {
    let split =
        |index: Index| text.split_once(index.placeholder()).map(|(before, after)| (before, index, after));
    Index::ALL.into_iter().filter_map(split).min_by_key(|(before, ..)| before.len())
}

/// A number as it is written in names. `007` and `+7` are other names than `7`, and no numbers.
fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n: &usize| n.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERT: Pattern = Pattern::new("model.layers.{}.mlp.experts.{expert}.up_proj");

    #[test]
    fn names_are_read_back() {
        let at = Indices { layer: 10, expert: 127, head: 0 };
        assert_eq!(EXPERT.fill(at), "model.layers.10.mlp.experts.127.up_proj");
        assert_eq!(EXPERT.parse(&EXPERT.fill(at)), Some(at));
        let norm = Pattern::new("layers.{}.q_norm.{head}");
        assert_eq!(norm.parse("layers.0.q_norm.31"), Some(Indices { layer: 0, expert: 0, head: 31 }));
        assert_eq!(Pattern::new("token_embd").parse("token_embd"), Some(Indices::default()));
    }

    #[test]
    fn other_names_have_no_indices() {
        for number in
            ["", "-1", "+1", "01", "00", "1.2", " 1", "1 ", "x", "{}", "٣", "99999999999999999999999"]
        {
            for name in [
                format!("model.layers.{number}.mlp.experts.1.up_proj"),
                format!("model.layers.1.mlp.experts.{number}.up_proj"),
            ] {
                assert_eq!(EXPERT.parse(&name), None, "{name}");
            }
            assert_eq!(
                EXPERT.layer_of(&format!("model.layers.{number}")).is_some(),
                number == "1.2",
                "{number}"
            );
        }
        let name = "model.layers.1.mlp.experts.1.up_proj";
        for (i, _) in name.char_indices() {
            assert_eq!(EXPERT.parse(&name[..i]), None);
            assert_eq!(EXPERT.parse(&name[i + 1..]), None);
        }
        assert_eq!(EXPERT.parse(&format!("{name}.weight")), None);
    }
}
