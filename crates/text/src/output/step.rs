//! [`Step`]: how a model writes tool calls, as data.

/// A way of writing tool calls: how it begins, and the steps after that.
#[derive(Debug)]
pub(super) struct Section {
    /// Its beginning.
    pub(super) open: Open,
    /// The syntax behind the beginning.
    pub(super) steps: &'static [Step],
}

/// The beginning of a [`Section`].
#[derive(Debug)]
pub(super) enum Open {
    /// One of these opening markers, anywhere.
    Marker(&'static [&'static str]),
    /// No marker: the first text of the answer, behind whitespace.
    First,
    /// The header of a channel that is addressed to a tool (harmony). The steps begin behind the header.
    Header,
}

/// A part of a syntax. The steps of a list follow each other; the first alternative that fits is taken for good.
#[derive(Debug)]
pub(super) enum Step {
    /// This text.
    Lit(&'static str),
    /// Whitespace, or nothing.
    Space,
    /// This closing marker. At the end of the text it may be cut off, as may be all of it: models stop at tokens that
    /// are not shown.
    Close(&'static str),
    /// This closing tag. At the end of the text it may be cut off behind `</`; without that much of it more arguments
    /// could follow.
    Tag(&'static str),
    /// A word without whitespace and quotes, up to whitespace or one of these texts.
    Word(Slot, &'static [&'static str]),
    /// The name of an argument, up to this marker, which is passed over.
    Key(&'static str),
    /// The value of an argument.
    Value(Raw),
    /// A JSON object that is a call.
    Call(&'static Members),
    /// A JSON object of a list. If it is a call, it is complete with it; other objects are left as text.
    Item(&'static Members),
    /// A JSON object: the arguments of the call.
    Arguments,
    /// A call in Python's syntax, of which this suffix of the name is no part.
    Python(&'static str),
    /// Arguments in braces, whose strings stand between two of these quotes and have no escapes.
    Braces(&'static str),
    /// These steps, or nothing.
    Opt(&'static [Step]),
    /// These steps, any number of times. They take some text.
    Many(&'static [Step]),
    /// The first of these that fits.
    Any(&'static [&'static [Step]]),
    /// A call is complete, but only valid together with what follows.
    Keep,
    /// A call is complete, and so are those that were kept.
    Emit,
    /// Whitespace follows, or the end of the text.
    Edge,
    /// The end of the text.
    End,
}

/// The meaning of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Name of the tool.
    Name,
    /// Id of the call.
    Id,
    /// Id of the call that contains the tool's name: `functions.name:0`.
    NamedId,
    /// Nothing that is needed.
    Ignored,
}

/// The raw text of an argument's value.
#[derive(Debug)]
pub(super) struct Raw {
    /// How it becomes JSON.
    pub(super) typed: Typed,
    /// The marker behind it, which is passed over.
    pub(super) end: &'static str,
    /// One of these follows the marker, behind whitespace. Otherwise the marker is part of the value.
    pub(super) then: &'static [&'static str],
    /// Ends of calls that no value contains. A marker that is missing would make the next call a part of this one.
    pub(super) never: &'static [&'static str],
}

/// How the raw text of an argument becomes JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typed {
    /// By the tool's schema. A newline directly behind the opening marker and one before the closing marker are layout.
    Lines,
    /// By the tool's schema.
    Schema,
    /// It is a string.
    Text,
    /// It is JSON.
    Json,
}

/// The members of a JSON object that is a call. The first that is there counts.
#[derive(Debug)]
pub(super) struct Members {
    /// Keys of the tool's name.
    pub(super) name: &'static [&'static str],
    /// Keys of the arguments.
    pub(super) arguments: &'static [&'static str],
    /// Keys of the call's id.
    pub(super) id: &'static [&'static str],
    /// Key of an object that has the name and the arguments, as in OpenAI's API.
    pub(super) nested: Option<&'static str>,
    /// True if an object without arguments is a call only if the tools are known and one has its name: other JSON has
    /// names, too.
    pub(super) bare: bool,
}

/// `name` with `arguments` or `parameters`: models are trained on one and have seen both.
pub(super) const NAMED: Members =
    Members { name: &["name"], arguments: &["arguments", "parameters"], id: &[], nested: None, bare: false };

/// Calls in a list in Python's syntax, with its brackets. They are only valid together with what follows.
pub(super) const KEPT_LIST: &[Step] = &[
    Step::Lit("["),
    Step::Space,
    Step::Python(""),
    Step::Keep,
    Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Python(""), Step::Keep]),
    Step::Space,
    Step::Lit("]"),
];

/// Calls in a list in Python's syntax, without its opening bracket.
pub(super) const PYTHON_ITEMS: &[Step] = &[
    Step::Space,
    Step::Python(""),
    Step::Emit,
    Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Python(""), Step::Emit]),
    Step::Space,
    Step::Close("]"),
];

/// Calls in a list of JSON objects, without its opening bracket.
pub(super) const ITEMS: &[Step] = &[
    Step::Space,
    Step::Item(&NAMED),
    Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Item(&NAMED)]),
    Step::Space,
    Step::Close("]"),
];
