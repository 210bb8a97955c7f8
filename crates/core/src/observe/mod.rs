//! [`Observed`]: a backend that passes the inputs of linear layers to an observer (imatrix).

mod inner;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use crate::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, EltwiseOp, Embed, Epilogue, Ffn, GatedDelta,
    IndexMode, IndexRows, KvWrite, Linear, LinearMany, Matmul, Moe, Normalize, PermuteCols, QkvPrep, Rope,
    Route, TailSum, TopK, TopKOut,
};
use crate::{
    Backend, DType, Expert, HostWeight, LayerKv, LinearWeights, Memory, Result, RoutingWeightOn, Stack,
    Tensor, TensorId, Trace, Weight, compose,
};
use inner::{Inner, outer, tensor_id, with_id};

/// Callback with a matrix and the elements of its input [rows, cols].
pub type Observer = Box<dyn FnMut(&TensorId, &[f32])>;

/// A backend that computes on another one, and passes the input of each linear layer to an observer.
///
/// Fused ops run as their single linear layers. A layer is known by its weight: [`prepare`](Backend::prepare) notes the
/// weight's [`TensorId`] in its memory handle (`ObservedBuf`). Weights without one, such as LoRA's, are not observed.
pub struct Observed<B: Backend> {
    inner: B,
    observer: RefCell<Option<Observer>>,
}

/// A handle to memory of the inner backend, and the checkpoint tensor that is in it.
#[derive(Clone, Debug)]
pub struct ObservedBuf<T> {
    buf: T,
    tensor: Option<Rc<TensorId>>,
}

impl<B: Backend> fmt::Debug for Observed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.inner).finish()
    }
}

impl<B: Backend> Observed<B> {
    /// The backend without an observer yet.
    pub fn new(inner: B) -> Observed<B> {
        Observed { inner, observer: RefCell::default() }
    }

    /// Sets the observer; `None` removes it.
    pub fn set_observer(&self, observer: Option<Observer>) {
        *self.observer.borrow_mut() = observer;
    }

    /// Passes the input of linear layers to the observer: once for each matrix, also where several of the layers are
    /// parts of it, or share it.
    fn observe(&self, x: &Tensor<Self>, weights: &[LinearWeights<Self>]) -> Result<()> {
        let mut ids: Vec<&TensorId> = Vec::new();
        for id in weights.iter().filter_map(tensor_id) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        if ids.is_empty() || x.is_empty() || self.observer.borrow().is_none() {
            return Ok(());
        }
        let rows: Vec<f32> = self.download(x)?;
        if let Some(observer) = self.observer.borrow_mut().as_mut() {
            ids.into_iter().for_each(|id| observer(id, &rows));
        }
        Ok(())
    }
}

impl<B: Backend> Memory for Observed<B> {
    type Buf = ObservedBuf<B::Buf>;
    type Pending = B::Pending;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        self.inner.alloc(dtype, rows, cols).map(outer)
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        self.inner.write(&to.inner(), bytes)
    }

    fn fetch(&self, from: &[&Tensor<Self>]) -> Result<B::Pending> {
        let inner: Vec<Tensor<B>> = from.iter().map(|t| t.inner()).collect();
        self.inner.fetch(&inner.iter().collect::<Vec<_>>())
    }

    fn wait(&self, pending: B::Pending, to: &mut [&mut [u8]]) -> Result<()> {
        self.inner.wait(pending, to)
    }

    fn zero(&self, t: &Tensor<Self>) -> Result<()> {
        self.inner.zero(&t.inner())
    }
}

impl<B: Backend> Backend for Observed<B> {
    fn label(&self) -> String {
        self.inner.label()
    }

    fn trace(&self) -> &Trace {
        self.inner.trace()
    }

    fn copy(&self, op: &Copy<'_, Self>) -> Result<()> {
        self.inner.copy(&Copy { from: &op.from.inner(), to: &op.to.inner() })
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn begin(&self) -> Result<bool> {
        self.inner.begin()
    }

    fn clock(&self) -> Result<f64> {
        self.inner.clock()
    }

    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Self>> {
        let id = weight.tensor.map(|id| Rc::new(id.clone()));
        self.inner.prepare(weight).map(|weight| with_id(weight, id))
    }

    fn prepare_stacked(&self, weight: HostWeight<'_>, stack: &mut Stack<Self>) -> Result<Weight<Self>> {
        let id = weight.tensor.map(|id| Rc::new(id.clone()));
        let mut inner = stack.inner();
        let weight = self.inner.prepare_stacked(weight, &mut inner).map(|weight| with_id(weight, id));
        *stack = outer(inner);
        weight
    }

    // ---- linear layers -----------------------------------------------------------------------------------------

    fn linear(&self, op: &Linear<'_, Self>) -> Result<Tensor<Self>> {
        self.observe(op.x, std::slice::from_ref(op.weights))?;
        let Epilogue { scale, softcap, residual } = op.epilogue;
        let residual = residual.map(Inner::inner);
        let epilogue = Epilogue { scale, softcap, residual: residual.as_ref() };
        self.inner.linear(&Linear { x: &op.x.inner(), weights: &op.weights.inner(), epilogue }).map(outer)
    }

    fn linear_many(&self, op: &LinearMany<'_, Self>) -> Result<Tensor<Self>> {
        let normed = op.norm.map(|norm| self.run(Normalize { x: op.x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
        self.observe(x, op.weights)?;
        let without_ids: Vec<_> = op.weights.iter().map(|layer| outer(layer.inner())).collect();
        compose::linear_many(self, &LinearMany { x, norm: None, weights: &without_ids })
    }

    /// Each expert's layers run, and are observed, on its routed rows only.
    fn moe(&self, op: &Moe<'_, Self>) -> Result<Tensor<Self>> {
        let count = op.experts.len();
        let weights: Vec<f32> = self.download(op.routing_weights)?; // [rows, experts]
        let sum = self.alloc(op.x.dtype(), op.x.rows(), op.x.cols())?; // [rows, dim]
        self.zero(&sum)?;
        for (i, Expert { up, down }) in op.experts.iter().enumerate() {
            let routed =
                weights.iter().skip(i).step_by(count).zip(0u32..).filter(|(weight, _)| **weight != 0.0);
            let rows: Vec<u32> = routed.map(|(_, row)| row).collect();
            if rows.is_empty() {
                continue;
            }
            let indices = &self.upload_row(&rows)?;
            let gather = |x: &Tensor<Self>| self.run(IndexRows { x, indices, mode: IndexMode::Gather });
            let x = gather(op.x)?; // [some rows, dim]
            let weight = gather(&op.routing_weights.col_range(i..i + 1))?; // [some rows, 1]
            let weighted = |x: &Tensor<Self>| self.run(Eltwise { x, op: EltwiseOp::Mul(&weight) });
            let expert = |x: &Tensor<Self>| {
                self.run(Ffn {
                    x,
                    norm: None,
                    up,
                    act: op.act,
                    down,
                    epilogue: Epilogue::NONE,
                    adapters: &[],
                })
            };
            let y = match op.weight_on {
                RoutingWeightOn::Output => weighted(&expert(&x)?)?,
                RoutingWeightOn::Input => expert(&weighted(&x)?)?,
            };
            self.run(IndexRows { x: &y, indices, mode: IndexMode::ScatterAdd(&sum) })?;
        }
        compose::apply(self, &op.epilogue, sum)
    }

    // ---- everything else goes to the inner backend ----------------------------------------------------------------

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        let Embed { table, ids, scale } = *op;
        self.inner.embed(&Embed { table: &table.inner(), ids: &ids.inner(), scale }).map(outer)
    }

    fn normalize(&self, op: &Normalize<'_, Self>) -> Result<Tensor<Self>> {
        let residual = op.residual.map(Inner::inner);
        let (x, norm, residual) = (&op.x.inner(), &op.norm.inner(), residual.as_ref());
        self.inner.normalize(&Normalize { x, norm, residual }).map(outer)
    }

    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<Tensor<Self>> {
        let Epilogue { scale, softcap, residual } = op.epilogue;
        let (bias, residual) = (op.bias.map(Inner::inner), residual.map(Inner::inner));
        let epilogue = Epilogue { scale, softcap, residual: residual.as_ref() };
        let (x, weight, bias) = (&op.x.inner(), &op.weight.inner(), bias.as_ref());
        self.inner.matmul(&Matmul { x, weight, bias, epilogue }).map(outer)
    }

    fn dequant(&self, op: &Dequant<'_, Self>) -> Result<Tensor<Self>> {
        self.inner.dequant(&Dequant { w: &op.w.inner(), rows: op.rows.clone() }).map(outer)
    }

    fn rope(&self, op: &Rope<'_, Self>) -> Result<Tensor<Self>> {
        let (x, rope, positions) = (&op.x.inner(), &op.rope.inner(), &op.positions.inner());
        self.inner.rope(&Rope { x, head_dim: op.head_dim, rope, positions }).map(outer)
    }

    fn kv_write(&self, op: &KvWrite<'_, Self>) -> Result<()> {
        let (k, v, plan) = (&op.k.inner(), op.v.map(Inner::inner), &op.plan.inner());
        let (cache_k, cache_v) = (&op.kv.k.inner(), op.kv.v.map(Inner::inner));
        let kv = LayerKv { k: cache_k, v: cache_v.as_ref() };
        self.inner.kv_write(&KvWrite { k, v: v.as_ref(), heads: op.heads, kv, plan })
    }

    fn attend(&self, op: &Attend<'_, Self>) -> Result<Tensor<Self>> {
        let (q, spec, plan) = (&op.q.inner(), &op.spec.inner(), &op.plan.inner());
        let (cache_k, cache_v) = (&op.kv.k.inner(), op.kv.v.map(Inner::inner));
        let kv = LayerKv { k: cache_k, v: cache_v.as_ref() };
        self.inner.attend(&Attend { q, heads: op.heads, spec, kv, plan }).map(outer)
    }

    fn qkv_prep(&self, op: &QkvPrep<'_, Self>) -> Result<Tensor<Self>> {
        let (qk_norm, rope) = (op.qk_norm.map(Inner::inner), op.rope.map(Inner::inner));
        let (qkv, qk_norm, rope) = (&op.qkv.inner(), qk_norm.as_ref(), rope.as_ref());
        let (cache_k, cache_v) = (&op.kv.k.inner(), op.kv.v.map(Inner::inner));
        let kv = LayerKv { k: cache_k, v: cache_v.as_ref() };
        let plan = &op.plan.inner();
        self.inner.qkv_prep(&QkvPrep { qkv, heads: op.heads, qk_norm, rope, kv, plan }).map(outer)
    }

    fn activate(&self, op: &Activate<'_, Self>) -> Result<Tensor<Self>> {
        let up = op.up.map(Inner::inner);
        self.inner.activate(&Activate { gate: &op.gate.inner(), up: up.as_ref(), act: op.act }).map(outer)
    }

    fn eltwise(&self, op: &Eltwise<'_, Self>) -> Result<Tensor<Self>> {
        let (x, inner) = (&op.x.inner(), |y: &Tensor<Self>| y.inner());
        let run = |op: EltwiseOp<'_, B>| self.inner.eltwise(&Eltwise { x, op }).map(outer);
        match op.op {
            EltwiseOp::Add(y) => run(EltwiseOp::Add(&inner(y))),
            EltwiseOp::AddScaled(y, scale) => run(EltwiseOp::AddScaled(&inner(y), scale)),
            EltwiseOp::Mul(y) => run(EltwiseOp::Mul(&inner(y))),
            EltwiseOp::Scale(scale) => run(EltwiseOp::Scale(scale)),
            EltwiseOp::SoftCap(cap) => run(EltwiseOp::SoftCap(cap)),
            EltwiseOp::Gate(y) => run(EltwiseOp::Gate(&inner(y))),
        }
    }

    fn index_rows(&self, op: &IndexRows<'_, Self>) -> Result<Tensor<Self>> {
        let (x, indices) = (&op.x.inner(), &op.indices.inner());
        let run = |mode: IndexMode<'_, B>| self.inner.index_rows(&IndexRows { x, indices, mode }).map(outer);
        match op.mode {
            IndexMode::Gather => run(IndexMode::Gather),
            IndexMode::ScatterAdd(into) => run(IndexMode::ScatterAdd(&into.inner())),
        }
    }

    fn permute_cols(&self, op: &PermuteCols<'_, Self>) -> Result<Tensor<Self>> {
        self.inner.permute_cols(&PermuteCols { x: &op.x.inner(), indices: &op.indices.inner() }).map(outer)
    }

    fn route(&self, op: &Route<'_, Self>) -> Result<Tensor<Self>> {
        self.inner.route(&Route { logits: &op.logits.inner(), routing: &op.routing.inner() }).map(outer)
    }

    fn causal_conv(&self, op: &CausalConv<'_, Self>) -> Result<Tensor<Self>> {
        let (x, weight) = (&op.x.inner(), &op.weight.inner());
        let (window, plan) = (&op.window.inner(), &op.plan.inner());
        self.inner.causal_conv(&CausalConv { x, weight, window, plan }).map(outer)
    }

    fn gated_delta(&self, op: &GatedDelta<'_, Self>) -> Result<Tensor<Self>> {
        let (qk, v, gates) = (&op.qk.inner(), &op.v.inner(), &op.gates.inner());
        let (decay, states, plan) = (&op.decay.inner(), &op.states.inner(), &op.plan.inner());
        let heads = op.heads;
        self.inner.gated_delta(&GatedDelta { qk, v, gates, heads, decay, states, plan }).map(outer)
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let TopKOut { values, ids } = self.inner.topk(&TopK { x: &op.x.inner(), k: op.k })?;
        Ok(TopKOut { values: outer(values), ids: outer(ids) })
    }

    fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>> {
        let top = TopKOut { values: op.top.values.inner(), ids: op.top.ids.inner() };
        let (x, temperatures) = (&op.x.inner(), &op.temperatures.inner());
        self.inner.tail_sum(&TailSum { x, top: &top, temperatures }).map(outer)
    }
}
