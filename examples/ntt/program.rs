//! The program: layers of multiplications, each step into a buffer of its own.
//!
//! All work on a limb is on one stream. A layer uploads a polynomial and transforms it, and multiplies each
//! polynomial of the batch by it: transform, product word by word, inverse transform. Then the last limb is
//! dropped (the rescale step of homomorphic encryption): all other limbs' streams read it, and it is freed.
//! What a step has read and nothing reads again is freed at once, with work in flight. The layer's own inputs
//! and products live until it is done; then they are cleared together.

use super::account::{Account, Watch};
use super::check::{self, Wrong};
use super::common::cli::Outcome;
use super::common::device::Counts;
use super::inputs::Inputs;
use super::kernels::Launch;
use super::machine::Machine;
use super::reference::Polynomial;
use super::ring::Ring;

/// What a run has cost.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) ns: u64,
    /// Of that, in the allocator's calls, when those were watched.
    pub(crate) allocator_ns: u64,
    pub(crate) allocations: u64,
    /// The most bytes that the program held at once.
    pub(crate) live_peak_bytes: u64,
    /// The allocator's own.
    pub(crate) calls: Option<Counts>,
    /// `None` when the machine computes nothing, or nothing was to be checked.
    pub(crate) wrong: Option<Wrong>,
}

/// The program on one machine, with what lives as long as it does: the factors of the transforms, on the
/// device, and the inputs, on the host.
pub(crate) struct Program<'a, M: Machine> {
    machine: M,
    ring: &'a Ring,
    expected: Option<&'a [Polynomial]>,
    start: Vec<Vec<M::Host>>,
    multipliers: Vec<Vec<M::Host>>,
    /// For each limb the forward and the inverse ones.
    factors: Vec<[M::Buffer; 2]>,
    account: Account,
}

impl<'a, M: Machine> Program<'a, M> {
    /// `expected` is what the runs will be compared with.
    pub(crate) fn new(
        machine: M,
        ring: &'a Ring,
        inputs: &Inputs,
        expected: Option<&'a [Polynomial]>,
    ) -> Outcome<Program<'a, M>> {
        let on_host = |polynomials: &[Polynomial]| {
            let limbs =
                |limbs: &Polynomial| limbs.iter().map(|words| machine.host(words)).collect();
            polynomials.iter().map(limbs).collect::<Outcome<Vec<Vec<_>>>>()
        };
        let (start, multipliers) = (on_host(&inputs.start)?, on_host(&inputs.multipliers)?);
        let account = Account::new(&machine);
        let factors = Vec::new();
        let mut program = Program { machine, ring, expected, start, multipliers, factors, account };
        for (number, limb) in ring.limbs.iter().enumerate() {
            let factors =
                [program.upload(number, &limb.forward)?, program.upload(number, &limb.inverse)?];
            program.factors.push(factors);
        }
        Ok(program)
    }

    /// Runs all layers.
    pub(crate) fn run(&mut self, watch: Watch) -> Outcome<Round> {
        self.machine.prepare()?;
        // The run before has freed its last buffers after its clock had stopped.
        self.machine.synchronize()?;
        let calls = self.machine.calls();
        self.account.begin(watch);
        let start = self.machine.now();
        let mut batch = Vec::new();
        for number in 0..self.start.len() {
            let upload = |program: &mut Self, limb: usize| {
                let host = &program.start[number][limb];
                let mut buffer = program.account.alloc(&program.machine, limb, program.ring.n)?;
                program.machine.upload(host, &mut buffer)?;
                Ok(buffer)
            };
            let limbs = (0..self.ring.limbs.len()).map(|limb| upload(self, limb));
            batch.push(limbs.collect::<Outcome<Vec<_>>>()?);
        }
        for layer in 0..self.multipliers.len() {
            batch = self.layer(layer, batch)?;
        }
        let ns = self.machine.now() - start;
        let wrong = self.compare(&batch)?;
        for buffer in batch.into_iter().flatten() {
            self.free(buffer)?;
        }
        let Account { allocator_ns, allocations, live_peak_bytes, .. } = self.account;
        let calls = self.machine.calls().zip(calls).map(|(after, before)| after - before);
        Ok(Round { ns, allocator_ns, allocations, live_peak_bytes, calls, wrong })
    }

    /// One layer: the batch comes out with a limb less.
    fn layer(&mut self, layer: usize, batch: Vec<Vec<M::Buffer>>) -> Outcome<Vec<Vec<M::Buffer>>> {
        let mut workspace = Vec::new();
        let mut multiplier = Vec::new();
        for limb in 0..self.multipliers[layer].len() {
            let host = &self.multipliers[layer][limb];
            let mut words = self.account.alloc(&self.machine, limb, self.ring.n)?;
            self.machine.upload(host, &mut words)?;
            let transformed = self.forward(limb, &words)?;
            self.free(words)?;
            multiplier.push(transformed);
        }
        let mut results = Vec::new();
        for polynomial in batch {
            let mut products = Vec::new();
            for (limb, words) in polynomial.into_iter().enumerate() {
                products.push(self.multiply(limb, &words, &multiplier[limb])?);
                workspace.push(words);
            }
            results.push(self.rescale(&mut products)?);
            workspace.append(&mut products);
        }
        workspace.append(&mut multiplier);
        // The layer is done, and the program knows it, before its buffers are cleared.
        self.machine.synchronize()?;
        self.account.clear(&self.machine, workspace)?;
        Ok(results)
    }

    /// A limb's product with a transformed one, on the limb's stream.
    fn multiply(
        &mut self,
        limb: usize,
        words: &M::Buffer,
        transformed: &M::Buffer,
    ) -> Outcome<M::Buffer> {
        let values = self.forward(limb, words)?;
        let launch = Launch::product(self.ring, &self.ring.limbs[limb]);
        let mut product = self.alloc(limb)?;
        self.machine.launch(&launch, [&values, transformed], &mut product)?;
        self.free(values)?;
        for launch in Launch::inverse(self.ring, &self.ring.limbs[limb]) {
            let mut next = self.alloc(limb)?;
            self.machine.launch(&launch, [&product, &self.factors[limb][1]], &mut next)?;
            self.free(std::mem::replace(&mut product, next))?;
        }
        Ok(product)
    }

    /// A limb's forward transform, on its stream.
    fn forward(&mut self, limb: usize, words: &M::Buffer) -> Outcome<M::Buffer> {
        let mut values: Option<M::Buffer> = None;
        for launch in Launch::forward(self.ring, &self.ring.limbs[limb]) {
            let mut next = self.alloc(limb)?;
            let source = values.as_ref().unwrap_or(words);
            self.machine.launch(&launch, [source, &self.factors[limb][0]], &mut next)?;
            if let Some(read) = values.replace(next) {
                self.free(read)?;
            }
        }
        Ok(values.expect("a transform has a pass"))
    }

    /// Drops the last limb: each of the others takes it away, and is divided by its prime. The last limb's
    /// buffer is read on all their streams, and freed once.
    fn rescale(&mut self, products: &mut Vec<M::Buffer>) -> Outcome<Vec<M::Buffer>> {
        let dropped = products.len() - 1;
        let mut last = products.pop().expect("a polynomial has a limb");
        let streams = self.machine.streams();
        for stream in (0..streams.min(dropped)).filter(|&stream| stream != dropped % streams) {
            self.account.share(&self.machine, &mut last, stream)?;
        }
        let mut rescaled = Vec::new();
        for (limb, product) in products.iter().enumerate() {
            let launch = Launch::rescale(self.ring, &self.ring.limbs[limb], dropped);
            let mut words = self.alloc(limb)?;
            self.machine.launch(&launch, [product, &last], &mut words)?;
            rescaled.push(words);
        }
        if self.account.watch == Watch::Memory {
            // Here the program holds the most.
            self.machine.look_at_memory()?;
        }
        self.free(last)?;
        Ok(rescaled)
    }

    /// Runs each kernel by itself, and tells which is wrong.
    pub(crate) fn diagnose(&mut self) -> Outcome<String> {
        let ring = self.ring;
        let limb = &ring.limbs[0];
        let mut launches: Vec<Launch> = Launch::forward(ring, limb).collect();
        launches.push(Launch::product(ring, limb));
        launches.extend(Launch::inverse(ring, limb));
        launches.extend((ring.limbs.len() > 1).then(|| Launch::rescale(ring, limb, 1)));
        let mut text = String::new();
        for launch in launches {
            let [words, other] = check::inputs_of(&launch, ring);
            let mut inputs = vec![self.upload(0, &words)?, self.upload(0, &other)?];
            let mut target = self.alloc(0)?;
            self.machine.launch(&launch, [&inputs[0], &inputs[1]], &mut target)?;
            let got = self.machine.download(&target)?;
            text += &check::of_kernel(&launch, [&words, &other], got.as_deref());
            inputs.push(target);
            for buffer in inputs {
                self.free(buffer)?;
            }
        }
        Ok(text)
    }

    pub(crate) fn machine(&self) -> &M {
        &self.machine
    }

    /// Gives everything back.
    pub(crate) fn close(mut self) -> Outcome<()> {
        for buffer in std::mem::take(&mut self.factors).into_iter().flatten() {
            self.free(buffer)?;
        }
        self.machine.synchronize()?;
        self.machine.close()
    }

    fn compare(&self, batch: &[Vec<M::Buffer>]) -> Outcome<Option<Wrong>> {
        let Some(expected) = self.expected else { return Ok(None) };
        let mut wrong = Wrong::default();
        for (number, polynomial) in batch.iter().enumerate() {
            for (limb, buffer) in polynomial.iter().enumerate() {
                let Some(words) = self.machine.download(buffer)? else { return Ok(None) };
                let place = format!("polynomial {number}, limb {limb}");
                wrong.compare(&place, &expected[number][limb], &words);
            }
        }
        Ok(Some(wrong))
    }

    /// A buffer with these words, on the limb's stream.
    fn upload(&mut self, limb: usize, words: &[u64]) -> Outcome<M::Buffer> {
        let host = self.machine.host(words)?;
        let mut buffer = self.account.alloc(&self.machine, limb, words.len())?;
        self.machine.upload(&host, &mut buffer)?;
        // The device reads the host's words by itself, and those end here.
        self.machine.synchronize()?;
        Ok(buffer)
    }

    /// A buffer for a limb's words.
    fn alloc(&mut self, limb: usize) -> Outcome<M::Buffer> {
        self.account.alloc(&self.machine, limb, self.ring.n)
    }

    fn free(&mut self, buffer: M::Buffer) -> Outcome<()> {
        self.account.free(&self.machine, buffer)
    }
}
