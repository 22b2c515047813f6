//! The oracle of the oracle. On random programs, for every pair of operations that write the same
//! bytes, three verdicts agree:
//!
//! 1. the simulated device's vector clocks: a hazard is reported, or not;
//! 2. reachability in an explicit happens-before graph, built here and naively;
//! 3. execution with the earlier operation frozen: the later one overtakes it, or not.
//!
//! Every two kernels of a program share a cell of their own that both write, so that every pair is
//! judged, also where a third operation lies between them.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::thread;

use streampool::backend::{Backend, StreamKind};
use streampool::sim::{
    Call, Costs, FaultPlan, HazardKind, Kernel, Schedule, SimConfig, SimDevice, SimEvent, SimStream,
};

const PROGRAMS: u64 = 20_000;
const KERNELS: usize = 6;
const CELL: u64 = 16;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Launch { stream: usize },
    Record { event: usize, stream: usize },
    RecordContext { event: usize },
    Wait { stream: usize, event: usize },
    FailedRecord { event: usize, stream: usize },
    FailedWait { stream: usize, event: usize },
    Query { event: usize },
    SynchronizeEvent { event: usize },
    SynchronizeStream { stream: usize },
    SynchronizeContext { device: usize },
    Replace { stream: usize },
}

/// Which device each stream is on, and of what kind it is; which device each event is of.
#[derive(Clone, Debug)]
struct Program {
    devices: usize,
    streams: Vec<(usize, StreamKind)>,
    events: Vec<usize>,
    steps: Vec<Step>,
}

fn program(seed: u64) -> Program {
    let random = &mut Random(seed);
    let devices = 1 + usize::from(random.below(4) == 0);
    let with_legacy = random.below(3) == 0;
    let stream = |random: &mut Random| {
        let kind = match (with_legacy, random.below(4)) {
            (true, 0) => StreamKind::Legacy,
            (true, 1 | 2) => StreamKind::Blocking,
            _ => StreamKind::NonBlocking,
        };
        (random.below(devices), kind)
    };
    let streams: Vec<_> = (0..4).map(|_| stream(random)).collect();
    let events: Vec<usize> = (0..3).map(|_| random.below(devices)).collect();
    let mut launches = 0;
    let mut steps = Vec::new();
    while launches < KERNELS {
        let (stream, event) = (random.below(streams.len()), random.below(events.len()));
        let same_device = streams[stream].0 == events[event];
        steps.push(match random.below(41) {
            0..12 => {
                launches += 1;
                Step::Launch { stream }
            }
            12..20 if same_device => Step::Record { event, stream },
            20..29 => Step::Wait { stream, event },
            29 if same_device => Step::FailedRecord { event, stream },
            30 => Step::FailedWait { stream, event },
            31..35 => Step::Query { event },
            35 => Step::SynchronizeEvent { event },
            36 => Step::SynchronizeStream { stream },
            37 => Step::SynchronizeContext { device: random.below(devices) },
            38 => Step::Replace { stream },
            39 => Step::RecordContext { event },
            _ => continue,
        });
    }
    Program { devices, streams, events, steps }
}

/// The happens-before graph, as naive as can be: a node per operation, an edge per rule.
#[derive(Default)]
struct Graph {
    /// For each node: the stream (by a number never used again), its device and kind.
    nodes: Vec<(usize, usize, StreamKind)>,
    /// For each node, the nodes right before it.
    before: Vec<Vec<usize>>,
    /// What the host has seen finish: it comes before whatever is submitted from then on.
    seen: Vec<usize>,
    /// What each event stands for.
    recorded: Vec<Vec<usize>>,
}

impl Graph {
    fn submit(&mut self, stream: usize, device: usize, kind: StreamKind) -> usize {
        let node = self.nodes.len();
        let barrier = |&(_, other_device, other_kind): &(usize, usize, StreamKind)| {
            let kinds = (kind, other_kind);
            device == other_device
                && (kinds == (StreamKind::Legacy, StreamKind::Blocking)
                    || kinds == (StreamKind::Blocking, StreamKind::Legacy))
        };
        let earlier = (0..node)
            .filter(|&earlier| self.nodes[earlier].0 == stream || barrier(&self.nodes[earlier]));
        let before = earlier.chain(self.seen.iter().copied()).collect();
        self.nodes.push((stream, device, kind));
        self.before.push(before);
        node
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let mut open = vec![to];
        let mut known = vec![false; self.nodes.len()];
        while let Some(node) = open.pop() {
            if node == from {
                return true;
            }
            for &before in &self.before[node] {
                if !std::mem::replace(&mut known[before], true) {
                    open.push(before);
                }
            }
        }
        false
    }
}

/// One execution of a program: what the graph says, what the device says.
struct Outcome {
    /// Graph node and operation number of each kernel.
    kernels: Vec<(usize, u64)>,
    graph: Graph,
    /// Pairs of operation numbers.
    hazards: BTreeSet<(u64, u64)>,
    /// For kernels i < j: whether j's write to their cell was overwritten by i's.
    overtaken: Vec<Vec<bool>>,
}

struct Run<'a> {
    program: &'a Program,
    devices: Vec<SimDevice>,
    /// The stream, and its number in the graph; the default stream of a device has one number.
    streams: Vec<(SimStream, usize)>,
    next_stream: usize,
    events: Vec<SimEvent>,
    memory: u64,
    graph: Graph,
    kernels: Vec<(usize, u64)>,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, schedule: Schedule, seed: u64) -> Self {
        let config = SimConfig { seed, schedule, costs: Costs::free(), ..SimConfig::default() };
        let devices = SimDevice::several(config, program.devices);
        for peer in &devices[1..] {
            devices[0].allow_peer(peer, true).unwrap();
        }
        let memory = devices[0].alloc_segment((KERNELS * KERNELS) as u64 * CELL).unwrap();
        let events = program.events.iter().map(|&d| devices[d].create_event().unwrap()).collect();
        let graph = Graph { recorded: vec![Vec::new(); program.events.len()], ..Graph::default() };
        let (streams, kernels) = (Vec::new(), Vec::new());
        let mut run =
            Run { program, devices, streams, next_stream: 10, events, memory, graph, kernels };
        for index in 0..program.streams.len() {
            let stream = run.create(index);
            run.streams.push(stream);
        }
        run
    }

    fn create(&mut self, index: usize) -> (SimStream, usize) {
        let (device, kind) = self.program.streams[index];
        self.next_stream += 1;
        match kind {
            StreamKind::Legacy => (self.devices[device].legacy_stream(), device),
            StreamKind::Blocking => {
                (self.devices[device].create_blocking_stream(), self.next_stream)
            }
            _ => (self.devices[device].create_stream(), self.next_stream),
        }
    }

    fn submit(&mut self, stream: usize) -> usize {
        let (device, kind) = self.program.streams[stream];
        self.graph.submit(self.streams[stream].1, device, kind)
    }

    fn cell(&self, i: usize, j: usize) -> u64 {
        self.memory + (i * KERNELS + j) as u64 * CELL
    }

    fn launch(&mut self, stream: usize) {
        let k = self.kernels.len();
        let mut kernel = Kernel::new().stamp(k as u64 + 1);
        for other in (0..KERNELS).filter(|&other| other != k) {
            kernel = kernel.writes(self.cell(k.min(other), k.max(other)), CELL);
        }
        let device = &self.devices[self.program.streams[stream].0];
        device.launch(&self.streams[stream].0, kernel).unwrap();
        let number = device.operations();
        let node = self.submit(stream);
        self.kernels.push((node, number));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Launch { stream } => self.launch(stream),
            Step::Record { event, stream } => {
                let device = &self.devices[self.program.events[event]];
                device.record(&self.events[event], &self.streams[stream].0).unwrap();
                self.graph.recorded[event] = vec![self.submit(stream)];
            }
            Step::RecordContext { event } => {
                let device = self.program.events[event];
                let recorded = self.devices[device].record_context(&self.events[event]);
                assert!(recorded.unwrap(), "the device can");
                let nodes = self.graph.nodes.iter().enumerate();
                let all = nodes.filter(|(_, n)| n.1 == device).map(|(i, _)| i);
                self.graph.recorded[event] = all.collect();
            }
            Step::Wait { stream, event } => {
                let device = &self.devices[self.program.events[event]];
                device.wait(&self.streams[stream].0, &self.events[event]).unwrap();
                let node = self.submit(stream);
                let recorded = self.graph.recorded[event].clone();
                self.graph.before[node].extend(recorded);
            }
            Step::FailedRecord { event, stream } => {
                let device = &self.devices[self.program.events[event]];
                device.inject(FaultPlan::new(Call::Record));
                device.record(&self.events[event], &self.streams[stream].0).unwrap_err();
            }
            Step::FailedWait { stream, event } => {
                let device = &self.devices[self.program.events[event]];
                device.inject(FaultPlan::new(Call::Wait));
                device.wait(&self.streams[stream].0, &self.events[event]).unwrap_err();
            }
            Step::Query { event } => {
                let device = &self.devices[self.program.events[event]];
                if device.query(&self.events[event]).unwrap() {
                    self.graph.seen.extend(self.graph.recorded[event].iter().copied());
                }
            }
            Step::SynchronizeEvent { event } => {
                let device = &self.devices[self.program.events[event]];
                device.synchronize_event(&self.events[event]).unwrap();
                self.graph.seen.extend(self.graph.recorded[event].iter().copied());
            }
            Step::SynchronizeStream { stream } => {
                let device = &self.devices[self.program.streams[stream].0];
                device.user_stream_synchronize(&self.streams[stream].0).unwrap();
                let number = self.streams[stream].1;
                let nodes = self.graph.nodes.iter().enumerate();
                self.graph.seen.extend(nodes.filter(|(_, n)| n.0 == number).map(|(i, _)| i));
            }
            Step::SynchronizeContext { device } => {
                self.devices[device].synchronize_context().unwrap();
                let nodes = self.graph.nodes.iter().enumerate();
                self.graph.seen.extend(nodes.filter(|(_, n)| n.1 == device).map(|(i, _)| i));
            }
            Step::Replace { stream } => {
                let new = self.create_after_destroying(stream);
                self.streams[stream] = new;
            }
        }
    }

    /// The new stream gets the old one's raw handle, and shares nothing else with it.
    fn create_after_destroying(&mut self, stream: usize) -> (SimStream, usize) {
        let (device, kind) = self.program.streams[stream];
        let legacy = (self.devices[device].legacy_stream(), device);
        let (old, _) = std::mem::replace(&mut self.streams[stream], legacy);
        let handle = old.handle();
        drop(old);
        let new = self.create(stream);
        assert!(kind == StreamKind::Legacy || new.0.handle() == handle);
        new
    }

    fn finish(self) -> Outcome {
        self.devices[0].run();
        for device in &self.devices {
            device.synchronize_context().unwrap();
        }
        self.devices[0].run();
        let overtaken = (0..KERNELS)
            .map(|i| {
                let stamp = |j| self.devices[0].read_stamp(self.cell(i, j)).unwrap();
                (0..KERNELS).map(|j| j > i && stamp(j) == i as u64 + 1).collect()
            })
            .collect();
        let mut hazards = BTreeSet::new();
        for hazard in self.devices[0].hazards() {
            assert_eq!(hazard.kind(), HazardKind::Race, "{hazard}");
            let (earlier, later) = hazard.operations();
            hazards.insert((earlier.unwrap(), later.unwrap()));
        }
        Outcome { kernels: self.kernels, graph: self.graph, hazards, overtaken }
    }
}

fn execute(program: &Program, schedule: Schedule, seed: u64) -> Outcome {
    let mut run = Run::new(program, schedule, seed);
    for &step in &program.steps {
        run.step(step);
    }
    run.finish()
}

/// The clocks' verdict is the graph's, for every pair; and no schedule lets an operation overtake
/// one that it is ordered after. Returns how many pairs were ordered, and how many were not.
fn check_clocks(outcome: &Outcome, what: &dyn Fn() -> String) -> (u64, u64) {
    let mut counts = (0, 0);
    for j in 0..KERNELS {
        for i in 0..j {
            let (earlier, later) = (outcome.kernels[i], outcome.kernels[j]);
            let ordered = outcome.graph.reaches(earlier.0, later.0);
            let reported = outcome.hazards.contains(&(earlier.1, later.1));
            assert_eq!(ordered, !reported, "clocks and graph, kernels {i} and {j}: {}", what());
            assert!(!(ordered && outcome.overtaken[i][j]), "kernel {j} overtook {i}: {}", what());
            *if ordered { &mut counts.0 } else { &mut counts.1 } += 1;
        }
    }
    counts
}

/// All three verdicts on one program. Returns how many pairs were ordered, and how many were not.
fn check(seed: u64) -> (u64, u64) {
    let program = program(seed);
    let schedule = match seed % 3 {
        0 => Schedule::Random,
        1 => Schedule::Lazy,
        _ => Schedule::Timed,
    };
    let outcome = execute(&program, schedule, seed);
    check_clocks(&outcome, &|| format!("seed {seed}, {schedule:?}, {program:?}"));

    // Until the frozen operation is submitted nothing differs from a run with none frozen, so that
    // its number is the same.
    let eager = execute(&program, Schedule::Frozen(0), seed);
    let mut counts = (0, 0);
    for i in 0..KERNELS {
        let number = eager.kernels[i].1;
        let frozen = execute(&program, Schedule::Frozen(number), seed);
        let what = || format!("seed {seed}, frozen {number}, {program:?}");
        let (ordered, unordered) = check_clocks(&frozen, &what);
        counts = (counts.0 + ordered, counts.1 + unordered);
        for j in i + 1..KERNELS {
            let ordered = frozen.graph.reaches(frozen.kernels[i].0, frozen.kernels[j].0);
            let overtaken = frozen.overtaken[i][j];
            assert_eq!(ordered, !overtaken, "frozen kernel {i} and {j}: {}", what());
        }
    }
    counts
}

#[test]
fn clocks_graph_and_frozen_execution_agree() {
    const THREADS: u64 = 4;
    let sum = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
    let check_shard =
        |first| (first..PROGRAMS).step_by(THREADS as usize).map(check).fold((0, 0), sum);
    let (ordered, unordered) = thread::scope(|scope| {
        let shards: Vec<_> =
            (0..THREADS).map(|first| scope.spawn(move || check_shard(first))).collect();
        shards.into_iter().map(|shard| shard.join().unwrap()).fold((0, 0), sum)
    });
    // A generator whose pairs were nearly all ordered, or nearly none, would prove little.
    let balanced = ordered > unordered / 4 && unordered > ordered / 4;
    assert!(balanced, "{ordered} pairs ordered, {unordered} not");
}
