//! Mixture of experts (MoE).

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Eltwise, EltwiseOp, Epilogue, Moe, Normalize, Route};
use tallow_core::{
    Activation, Backend, Expert, LinearWeights, Norm, Result, Routing, RoutingWeightOn, Tensor,
};

use super::Context;
use super::mlp::{Mlp, MlpSlots};
use crate::Result as LoadResult;
use crate::spec::{ExpertsSpec, FfnSpec, MoeSpec};
use crate::weights::Weights;

/// A router, the experts that it chooses from, and optionally a shared expert.
#[derive(Debug)]
pub struct MoeBlock<B: Backend> {
    /// Norm in front of the router, where the router's input is not the experts'.
    router_norm: Option<Norm<B>>,
    router: LinearWeights<B>,
    /// Learned scale of each expert's weight: [1, experts]
    expert_scale: Option<Tensor<B>>,
    routing: Routing<B>,
    weight_on: RoutingWeightOn,
    experts: Vec<Expert<B>>,
    act: Activation,
    shared: Option<Shared<B>>,
}

/// Shared expert, and the gate that scales its output per token.
#[derive(Debug)]
struct Shared<B: Backend> {
    block: Mlp<B>,
    gate: Option<LinearWeights<B>>,
}

impl<B: Backend> MoeBlock<B> {
    /// Loads layer `i`'s MoE.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &MoeSpec) -> LoadResult<MoeBlock<B>> {
        let MoeSpec { expert: each, experts: spec } = spec;
        let (dim, count) = (w.spec().dim, spec.count);
        let router = w.linear((Slot::FfnGateInp, i), count, dim, spec.router_bias)?;
        let bias = match spec.bias {
            true => Some(w.slot_row((Slot::FfnExpProbsB, i), count)?),
            false => None,
        };
        let router_norm = spec.router_norm.then(|| w.router_norm(i)).transpose()?;
        let expert_scale =
            spec.expert_scale.then(|| w.slot_row((Slot::FfnDownExpsScale, i), count)).transpose()?;
        let ExpertsSpec { top_k, scores, weight_on, groups, norm_weights, scale, .. } = *spec;
        let experts = w.experts(i, count, each)?;
        let shared = match spec.shared {
            None => None,
            Some(shared) => {
                let like = FfnSpec { width: shared.width, ..*each };
                let block = Mlp::load(w, i, MlpSlots::SHARED, &like)?;
                let gate = match shared.gated {
                    true => Some(w.gate((Slot::FfnGateInpShexp, i), dim)?),
                    false => None,
                };
                Some(Shared { block, gate })
            }
        };
        let routing = Routing { top_k, scores, bias, groups, norm_weights, scale };
        Ok(MoeBlock { router_norm, router, expert_scale, routing, weight_on, experts, act: each.act, shared })
    }

    /// `epilogue(block(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let b = cx.b;
        let router_input =
            self.router_norm.as_ref().map(|norm| b.run(Normalize { x, norm, residual: None })).transpose()?;
        let normed = norm.map(|norm| b.run(Normalize { x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(x); // [tokens, dim]
        let router_input = router_input.as_ref().unwrap_or(x);
        let logits = cx.linear(router_input, &self.router, Epilogue::NONE)?; // [tokens, experts]
        let mut routing_weights = b.run(Route { logits: &logits, routing: &self.routing })?; // [tokens, experts]
        if let Some(scale) = &self.expert_scale {
            routing_weights = b.run(Eltwise { x: &routing_weights, op: EltwiseOp::Mul(scale) })?;
        }
        let MoeBlock { weight_on, experts, act, .. } = self;
        let y = b.run(Moe {
            x,
            routing_weights: &routing_weights,
            top_k: self.routing.top_k,
            weight_on: *weight_on,
            experts,
            act: *act,
            epilogue,
        })?;
        let Some(shared) = &self.shared else { return Ok(y) };
        let Some(gate) = &shared.gate else {
            let then = Epilogue { scale: epilogue.scale, ..Epilogue::add_to(&y) };
            return shared.block.forward(cx, x, None, then);
        };
        let shared_out = shared.block.forward(cx, x, None, Epilogue::NONE)?;
        let gate = cx.linear(x, gate, Epilogue::NONE)?; // [tokens, 1]
        let shared_out = b.run(Eltwise { x: &shared_out, op: EltwiseOp::Gate(&gate) })?;
        b.run(Eltwise { x: &y, op: EltwiseOp::AddScaled(&shared_out, epilogue.scale) })
    }
}
