//! What a template says, as a tree.

use std::sync::Arc;

/// A list of statements.
pub(super) type Body = Vec<Statement>;

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Text(Box<str>),
    Print(Expr),
    /// Conditions with their bodies, then the rest.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<Loop>),
    Set(Target, Expr),
    /// What a body writes, through filters.
    SetBlock(Target, Vec<Call>, Body),
    Macro(Arc<Macro>),
    /// A call of a macro, which may call the body.
    CallBlock(Expr, Arc<Macro>),
    /// What a body writes, through filters, written.
    Filter(Vec<Call>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A block that a template which extends this one could replace, and whether it knows the names around it.
    Block(bool, Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) only_if: Option<Expr>,
    pub(super) body: Body,
    pub(super) otherwise: Body,
    pub(super) recursive: bool,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    /// Names with what they are if nothing is given.
    pub(super) parameters: Vec<(Arc<str>, Option<Expr>)>,
    /// Does the body ask for arguments that have no name, and for named ones that are no parameters?
    pub(super) takes_more: bool,
    pub(super) takes_named: bool,
    pub(super) body: Body,
}

/// What is given a value.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// A member of a namespace.
    Member(Arc<str>, Arc<str>),
    Several(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Box<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Operations of one rank, from the left.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    /// Text of all parts, put together.
    Join(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// A value if a condition holds, or another.
    Choice(Box<[Expr; 2]>, Option<Box<Expr>>),
    /// A value and what is done with it, one after the other.
    Chain(Box<Expr>, Vec<Link>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// A step of a chain.
#[derive(Debug)]
pub(super) enum Link {
    Member(Arc<str>),
    Item(Expr),
    Slice([Option<Expr>; 3]),
    Call(Arguments),
    Filter(Call),
    /// A test, and whether it must fail.
    Test(Call, bool),
}

/// A filter or a test.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: Box<str>,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) plain: Vec<Expr>,
    pub(super) named: Vec<(Box<str>, Expr)>,
    /// `*list` and `**object`.
    pub(super) rest: Option<Box<Expr>>,
    pub(super) named_rest: Option<Box<Expr>>,
}
