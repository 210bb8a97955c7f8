//! Kernels, and the recording of their launches.

use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use tallow_core::{Error, Result};
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBinding, BufferBindingType, BufferSize, ShaderStages,
};

use super::{Block, GROUPS, Gpu, PARAMS, WORK, now};
use crate::preprocess::{Define, Value, preprocess};
use crate::shaders::FILES;

/// Identifies a compiled kernel: its file in `shaders`, and the values that are fixed in it.
#[derive(Clone, Debug, Eq)]
pub(crate) struct Kernel {
    /// The file's name, without `.wgsl`.
    pub name: &'static str,
    pub defines: Vec<Define>,
}

impl Kernel {
    pub(crate) fn new(name: &'static str) -> Kernel {
        Kernel { name, defines: Vec::with_capacity(24) }
    }

    /// Adds a define, which the file must use.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Kernel {
        self.defines.push((name, value.into()));
        self
    }
}

// A kernel is looked up for each launch: values differ more than names, and equal names are mostly the same literal.

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        let same = |a: &'static str, b: &'static str| std::ptr::eq(a, b) || a == b;
        let mut defines = self.defines.iter().zip(&other.defines);
        same(self.name, other.name)
            && self.defines.len() == other.defines.len()
            && defines.all(|(a, b)| a.1 == b.1 && same(a.0, b.0))
    }
}

impl Hash for Kernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        for (_, value) in &self.defines {
            match value {
                Value::Number(n) => state.write_u32(*n),
                Value::Name(name) => state.write(name.as_bytes()),
                Value::Words(words) => state.write_u32(words[0]),
            }
        }
    }
}

/// Access of a kernel to a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A block bound to a kernel as the array `name`.
#[derive(Clone, Debug)]
pub(crate) struct Arg<'a> {
    pub name: &'static str,
    /// Element type in WGSL: `f32`, `u32`, `vec4<f32>`.
    pub of: &'static str,
    pub access: Access,
    pub block: &'a Block,
}

/// A uniform parameter of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param {
    U(&'static str, u32),
    F(&'static str, f32),
    /// Offset and row stride of an operand, in elements: `x_at` and `x_stride` for `x`.
    View(&'static str, u32, u32),
}

impl Param {
    fn declare(self, text: &mut String) {
        let _ = match self {
            Param::U(name, _) => writeln!(text, "  {name}: u32,"),
            Param::F(name, _) => writeln!(text, "  {name}: f32,"),
            Param::View(name, ..) => writeln!(text, "  {name}_at: u32,\n  {name}_stride: u32,"),
        };
    }

    fn write(self, bytes: &mut Vec<u8>) {
        match self {
            Param::U(_, x) => bytes.extend(x.to_le_bytes()),
            Param::F(_, x) => bytes.extend(x.to_le_bytes()),
            Param::View(_, at, stride) => {
                bytes.extend(at.to_le_bytes());
                bytes.extend(stride.to_le_bytes());
            }
        }
    }

    fn bytes(params: &[Param]) -> usize {
        params
            .iter()
            .map(|p| if matches!(p, Param::View(..)) { 8 } else { 4 })
            .sum::<usize>()
            .next_multiple_of(16)
    }
}

/// One launch of a kernel.
///
/// The names in `args` and `params` are declared in front of the kernel's file: storage arrays by their own names,
/// parameters as fields of `p`. All launches of a kernel must have the same names in the same order.
pub(crate) struct Launch<'a> {
    pub kernel: Kernel,
    pub args: Vec<Arg<'a>>,
    pub params: Vec<Param>,
    /// Workgroups.
    pub grid: [u32; 3],
    /// Estimated multiplications; 0 where they are few.
    pub work: u64,
}

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// Key of its bind groups.
    id: usize,
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    /// Bindings and parameters.
    #[cfg(test)]
    pub declarations: String,
    /// The kernel's own WGSL.
    #[cfg(test)]
    pub program: crate::preprocess::Program,
}

/// A recorded command.
#[derive(Clone, Debug)]
pub(super) enum Recorded {
    Run { pipeline: Rc<Pipeline>, group: wgpu::BindGroup, params: u32, grid: [u32; 3] },
    Clear(wgpu::Buffer),
    Copy { from: wgpu::Buffer, start: u64, to: wgpu::Buffer, at: u64, len: u64 },
}

/// Encodes the recorded commands; consecutive launches share a compute pass.
pub(super) fn encode(encoder: &mut wgpu::CommandEncoder, recorded: &[Recorded]) {
    let mut pass = None;
    for what in recorded {
        match what {
            Recorded::Run { pipeline, group, params, grid } => {
                let pass = pass.get_or_insert_with(|| {
                    encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
                });
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, group, &[*params]);
                pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
            }
            Recorded::Clear(buffer) => {
                pass = None;
                encoder.clear_buffer(buffer, 0, None);
            }
            Recorded::Copy { from, start, to, at, len } => {
                pass = None;
                encoder.copy_buffer_to_buffer(from, *start, to, *at, *len);
            }
        }
    }
}

impl Launch<'_> {
    /// WGSL that declares bindings and parameters.
    pub(crate) fn declarations(&self) -> String {
        let mut text = String::new();
        for (i, arg) in self.args.iter().enumerate() {
            let access = if arg.access == Access::Read { "read" } else { "read_write" };
            let (name, of) = (arg.name, arg.of);
            let _ = writeln!(text, "@group(0) @binding({i}) var<storage, {access}> {name}: array<{of}>;");
        }
        text += "struct Params {\n";
        self.params.iter().for_each(|p| p.declare(&mut text));
        let _ = writeln!(text, "}}\n@group(0) @binding({}) var<uniform> p: Params;", self.args.len());
        text
    }
}

impl Gpu {
    /// Records a launch.
    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let widest = self.limits.max_compute_workgroups_per_dimension;
        if let Some(n) = launch.grid.iter().find(|n| **n > widest) {
            let why = format!("{} needs {n} workgroups in a row, and it takes {widest}", launch.kernel.name);
            return Err(Error::Device { device: self.about.name.clone(), why });
        }
        let pipeline = self.pipeline(launch)?;
        let align = self.limits.min_uniform_buffer_offset_alignment as usize;
        let room = Param::bytes(&launch.params).next_multiple_of(align.max(16));
        self.make_room(room, launch.work)?;
        let group = self.group(&pipeline, launch);
        let mut params = self.params.borrow_mut();
        let at = params.len();
        launch.params.iter().for_each(|p| p.write(&mut params));
        params.resize(at + room, 0);
        let run = Recorded::Run { pipeline, group, params: at as u32, grid: launch.grid };
        self.recorded.borrow_mut().push(run);
        self.count(|c| c.dispatches += 1);
        Ok(())
    }

    /// Submits what is recorded if so many more bytes of parameters, or so many more multiplications, are too many for one
    /// submission, and counts those.
    pub(super) fn make_room(&self, params: usize, work: u64) -> Result<()> {
        let all = self.work.get().saturating_add(work);
        if self.params.borrow().len() + params > PARAMS as usize || (all > WORK && self.work.get() > 0) {
            self.submit()?;
        }
        self.work.set(self.work.get().saturating_add(work));
        Ok(())
    }

    /// The compiled kernel, compiled on first use.
    fn pipeline(&self, launch: &Launch<'_>) -> Result<Rc<Pipeline>> {
        if let Some(found) = self.pipelines.borrow().get(&launch.kernel) {
            // Whatever changes the declarations must be a define.
            #[cfg(test)]
            assert_eq!(found.declarations, launch.declarations(), "{:?}", launch.kernel);
            return Ok(found.clone());
        }
        let pipeline = Rc::new(self.compile(launch)?);
        self.pipelines.borrow_mut().insert(launch.kernel.clone(), pipeline.clone());
        Ok(pipeline)
    }

    fn compile(&self, launch: &Launch<'_>) -> Result<Pipeline> {
        let (name, device) = (launch.kernel.name, &self.device);
        let fails = |why: String| {
            let why = format!("the kernel {name} does not compile: {why}");
            Error::Device { device: self.about.name.clone(), why }
        };
        let program = preprocess(FILES, name, &launch.kernel.defines).map_err(fails)?;
        let declarations = launch.declarations();
        let scopes =
            [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory];
        let scopes = scopes.map(|filter| device.push_error_scope(filter));
        let buffer = |ty, has_dynamic_offset, min_binding_size| BindingType::Buffer {
            ty,
            has_dynamic_offset,
            min_binding_size,
        };
        let params = BufferSize::new(Param::bytes(&launch.params) as u64);
        let mut entries: Vec<BindingType> = launch
            .args
            .iter()
            .map(|arg| {
                buffer(BufferBindingType::Storage { read_only: arg.access == Access::Read }, false, None)
            })
            .collect();
        entries.push(buffer(BufferBindingType::Uniform, true, params));
        let entries: Vec<BindGroupLayoutEntry> = (0..)
            .zip(entries)
            .map(|(binding, ty)| BindGroupLayoutEntry {
                binding,
                visibility: ShaderStages::COMPUTE,
                ty,
                count: None,
            })
            .collect();
        let layout = device
            .create_bind_group_layout(&BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
        let source = wgpu::ShaderSource::Wgsl((declarations.clone() + &program.wgsl).into());
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            int_div_checks: false,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: without loop bounding and division checks, every loop must end and no divisor may be zero. Loops in
        // our kernels count up to a bound that does not change, and divisors are sizes that the ops' checks have
        // validated. Bounds checks of accesses stay on.
        let module = unsafe {
            device.create_shader_module_trusted(
                wgpu::ShaderModuleDescriptor { label: Some(name), source },
                checks,
            )
        };
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
                constants: &program.constants,
            },
            cache: None,
        });
        // Error scopes are popped in reverse order.
        let errors = scopes.map(Some).into_iter().rev().filter_map(|mut scope| now(scope.take()?.pop()));
        if let Some(e) = errors.last() {
            let messages = now(module.get_compilation_info()).messages;
            let line =
                messages.iter().find_map(|m| m.location.as_ref()).map_or(0, |at| at.line_number as usize);
            let place = program.place(line.saturating_sub(declarations.lines().count()));
            return Err(fails(format!("{place}{}", super::fault::describe(&e))));
        }
        let id = self.pipelines.borrow().len();
        Ok(Pipeline {
            id,
            pipeline,
            layout,
            #[cfg(test)]
            declarations,
            #[cfg(test)]
            program,
        })
    }

    /// The bind group for a launch's blocks, cached.
    fn group(&self, pipeline: &Pipeline, launch: &Launch<'_>) -> wgpu::BindGroup {
        let mut groups = self.groups.borrow_mut();
        if groups.len() > GROUPS {
            groups.clear();
        }
        let ids = launch.args.iter().map(|arg| arg.block.id()).collect();
        match groups.entry((pipeline.id, ids)) {
            Entry::Occupied(group) => group.get().clone(),
            Entry::Vacant(place) => place.insert(self.bind(pipeline, launch)).clone(),
        }
    }

    fn bind(&self, pipeline: &Pipeline, launch: &Launch<'_>) -> wgpu::BindGroup {
        let params = BufferBinding {
            buffer: &self.params_buffer,
            offset: 0,
            size: BufferSize::new(Param::bytes(&launch.params) as u64),
        };
        let blocks = launch.args.iter().map(|arg| arg.block.buffer().as_entire_buffer_binding());
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(blocks.chain([params]))
            .map(|(binding, buffer)| BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(buffer),
            })
            .collect();
        self.device.create_bind_group(&BindGroupDescriptor {
            label: Some(launch.kernel.name),
            layout: &pipeline.layout,
            entries: &entries,
        })
    }
}
