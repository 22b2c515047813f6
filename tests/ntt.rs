//! The program in `examples/ntt`, run in small form: that its numbers are right, that every use of memory
//! is ordered and that one which is not would be found, and what it says to wrong input.
#![cfg(all(feature = "sim", not(loom)))]

#[path = "../examples/ntt/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run")]
mod ntt;

use std::cell::Cell;
use std::iter;

use ntt::account::Watch;
use ntt::common::cli::Outcome;
use ntt::common::device::Counts;
use ntt::inputs::Inputs;
use ntt::kernels::{Kernel, Launch};
use ntt::machine::Machine;
use ntt::measure::Measured;
use ntt::modular::{inverse_of_odd, is_prime, power};
use ntt::options::Options;
use ntt::program::Program;
use ntt::ring::{Limb, Ring};
use ntt::sim::{Sim, Source};
use ntt::{multiply, reference, report};

fn small() -> Options {
    Options { n: 512, limbs: 7, streams: 3, rounds: 1, ..Options::default() }
}

/// The product modulo X^n + 1, coefficient by coefficient.
fn schoolbook(prime: u64, left: &[u64], right: &[u64]) -> Vec<u64> {
    let prime = u128::from(prime);
    let mut product = vec![0; left.len()];
    for (i, &x) in left.iter().enumerate() {
        for (j, &y) in right.iter().enumerate() {
            let term = u128::from(x) * u128::from(y) % prime;
            let term = if i + j < left.len() { term } else { prime - term };
            let at = (i + j) % left.len();
            product[at] = (product[at] + term) % prime;
        }
    }
    product.into_iter().map(|word| word as u64).collect()
}

/// The words of a limb that are most likely to go wrong, and others.
fn words(ring: &Ring, limb: &Limb, salt: u64) -> Vec<u64> {
    let mut words = Inputs::new(ring, 1 + salt as usize, 0).start.pop().expect("one")[0].clone();
    words.iter_mut().for_each(|word| *word %= limb.prime);
    words[..3].copy_from_slice(&[limb.prime - 1, 0, 1]);
    words
}

#[test]
fn the_primes_are_prime_and_have_the_roots() {
    assert!([2, 3, 37, 41, 65537, (1 << 61) - 1].into_iter().all(is_prime));
    assert!(![0, 1, 4, 1681, 3_215_031_751, (1 << 60) - 1].into_iter().any(is_prime));
    let ring = Ring::new(1 << 16, 25).expect("there are more");
    for limb in &ring.limbs {
        assert!((1 << 59..1 << 60).contains(&limb.prime) && is_prime(limb.prime));
        // The entry after the one for no stage is the root's power n / 2: its square is -1.
        assert_eq!(power(limb.forward[2], 2, limb.prime), limb.prime - 1);
        assert_eq!(limb.prime.wrapping_mul(inverse_of_odd(limb.prime)), 1);
    }
}

#[test]
fn the_processor_multiplies_as_the_schoolbook_does() {
    for n in [16, 64, 256] {
        let ring = Ring::new(n, 3).expect("there are more");
        for limb in &ring.limbs {
            let (left, right) = (words(&ring, limb, 0), words(&ring, limb, 1));
            let mut transformed = right.clone();
            reference::forward(limb, &mut transformed);
            let product = reference::product(limb, &left, &transformed);
            assert_eq!(product, schoolbook(limb.prime, &left, &right), "{n}, {}", limb.prime);
        }
    }
}

#[test]
fn the_kernels_steps_multiply_as_the_processor_does() {
    // One pass, two equal ones, two that are not, three.
    for n in [16, 256, 1 << 10, 1 << 13, 1 << 17] {
        let ring = Ring::new(n, 2).expect("there are more");
        let limb = &ring.limbs[1];
        let run = |launches: &mut dyn Iterator<Item = Launch>, words: &[u64], other: &[u64]| {
            launches.fold(words.to_vec(), |words, launch| {
                let mut target = vec![0; words.len()];
                launch.execute([&words, other], &mut target);
                target
            })
        };
        let (left, right) = (words(&ring, limb, 0), words(&ring, limb, 1));
        let values = |words| run(&mut Launch::forward(&ring, limb), words, &limb.forward);
        let (left_values, mut transformed) = (values(&left), right.clone());
        reference::forward(limb, &mut transformed);
        assert_eq!(values(&right), transformed, "{n}");
        let product = Launch::product(&ring, limb);
        let product = run(&mut iter::once(product), &left_values, &transformed);
        let product = run(&mut Launch::inverse(&ring, limb), &product, &limb.inverse);
        assert_eq!(product, reference::product(limb, &left, &transformed), "{n}");
    }
}

/// Floor and remainder of large numbers, and nothing that the program has: a number below the product of
/// the limb's prime and the dropped one, its residues, and its quotient by the dropped prime.
#[test]
fn dropping_a_limb_divides_by_its_prime() {
    let ring = Ring::new(64, 4).expect("there are more");
    for (limb, dropped) in [(0, 1), (1, 0), (0, 3), (2, 3)] {
        let [prime, last] = [limb, dropped].map(|limb| u128::from(ring.limbs[limb].prime));
        let most = prime * last - 1;
        let edges = [0, 1, last - 1, last, last + 1, prime, most - last + 1, most - 1, most];
        let others = (1u128..).map(|number| {
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835) % (prime * last)
        });
        let numbers: Vec<u128> = edges.into_iter().chain(others).take(ring.n).collect();
        let residues = |prime: u128| -> Vec<u64> {
            numbers.iter().map(|number| (number % prime) as u64).collect()
        };
        let quotients: Vec<u64> =
            numbers.iter().map(|number| (number / last % prime) as u64).collect();
        let (value, remainder) = (residues(prime), residues(last));
        let of = &ring.limbs[limb];
        let by_processor = reference::rescale(of, &value, &remainder, ring.limbs[dropped].prime);
        assert_eq!(by_processor, quotients, "the processor, {limb} without {dropped}");
        let mut by_kernel = vec![0; ring.n];
        Launch::rescale(&ring, of, dropped).execute([&value, &remainder], &mut by_kernel);
        assert_eq!(by_kernel, quotients, "the kernel, {limb} without {dropped}");
    }
}

#[test]
fn the_ptx_has_the_parameters_that_are_passed() {
    let text = include_str!("../kernels/ntt.ptx");
    for kernel in Kernel::ALL {
        let (_, rest) = text
            .split_once(&format!(".visible .entry {}(", kernel.name()))
            .unwrap_or_else(|| panic!("the PTX has no kernel {}", kernel.name()));
        let (parameters, _) = rest.split_once(')').expect("the parameters end");
        let count = parameters.matches(".param .u64").count();
        assert_eq!(count, 3 + kernel.numbers(), "{}", kernel.name());
    }
}

#[test]
fn the_result_is_right_and_nothing_is_unordered() {
    let measured = multiply(&small()).expect("no error");
    for own in &measured {
        let name = own.allocator.name;
        assert_eq!(own.failure(), None, "{name}");
        let wrong = own.wrong.as_ref().expect("it was checked");
        // Three runs of two polynomials, and the limbs that four layers leave.
        assert_eq!((wrong.count, wrong.compared), (0, 3 * 2 * 3 * 512), "{name}");
        assert_eq!(own.hazards, Some(0), "{name}");
    }
    let calls = measured[0].calls.expect("the pool's calls are counted");
    // Of a warm run: a scope a layer, and no memory from the device.
    assert_eq!((calls.synchronizes, calls.mapping_calls), (4, 0));
    assert!(calls.stream_waits > 0, "nothing crossed streams");
    let driver = measured[1].calls.expect("the device counts them");
    assert_eq!(driver.mapping_calls, 2 * measured[1].allocations);
}

/// The README says so, of the program as it runs when nothing else is asked for.
#[test]
fn no_more_memory_is_taken_than_the_program_holds() {
    let options = Options { check: false, rounds: 1, ..Options::default() };
    let measured = multiply(&options).expect("no error");
    // 136 MiB are whole granules.
    let taken = |own: &Measured| (own.device_peak_bytes, own.warm_device_peak_bytes);
    for own in &measured {
        let live = own.live_peak_bytes;
        assert_eq!((live, taken(own)), (136 << 20, (live, live)), "{}", own.allocator.name);
    }
}

#[test]
fn the_time_in_the_allocator_has_all_its_calls() {
    let ring = Ring::new(512, 5).expect("there are more");
    let inputs = Inputs::new(&ring, 1, 1);
    let share = |ns: u64| {
        let machine = Forgetful::new(false, false, ns);
        let mut program = Program::new(machine, &ring, &inputs, None).expect("no error");
        let round = program.run(Watch::Allocator).expect("no error");
        program.close().expect("no error");
        round.allocator_ns
    };
    // Two streams beside its home read the limb that is dropped.
    assert_eq!(share(1_000_000) - share(0), 2_000_000);
}

/// The simulated device in the hands of a program that forgets to let other streams wait.
struct Forgetful {
    sim: Sim,
    forget: bool,
    /// What it takes to share a buffer, and what that has taken so far.
    share_ns: u64,
    shared_ns: Cell<u64>,
}

impl Forgetful {
    fn new(compute: bool, forget: bool, share_ns: u64) -> Forgetful {
        let sim = Sim::new(Source::Pool, compute, 3).expect("no error");
        Forgetful { sim, forget, share_ns, shared_ns: Cell::new(0) }
    }
}

impl Machine for Forgetful {
    type Buffer = <Sim as Machine>::Buffer;
    type Host = <Sim as Machine>::Host;

    fn share(&self, buffer: &mut Self::Buffer, stream: usize) -> Outcome<()> {
        self.shared_ns.set(self.shared_ns.get() + self.share_ns);
        if self.forget { Ok(()) } else { self.sim.share(buffer, stream) }
    }

    fn streams(&self) -> usize {
        self.sim.streams()
    }

    fn host(&self, words: &[u64]) -> Outcome<Self::Host> {
        self.sim.host(words)
    }

    fn prepare(&self) -> Outcome<()> {
        self.sim.prepare()
    }

    fn alloc(&self, stream: usize, words: usize) -> Outcome<Self::Buffer> {
        self.sim.alloc(stream, words)
    }

    fn words(&self, buffer: &Self::Buffer) -> usize {
        self.sim.words(buffer)
    }

    fn free(&self, buffer: Self::Buffer) -> Outcome<()> {
        self.sim.free(buffer)
    }

    fn clear(&self, buffers: Vec<Self::Buffer>) -> Outcome<()> {
        self.sim.clear(buffers)
    }

    fn upload(&self, host: &Self::Host, buffer: &mut Self::Buffer) -> Outcome<()> {
        self.sim.upload(host, buffer)
    }

    fn launch(
        &self,
        launch: &Launch,
        inputs: [&Self::Buffer; 2],
        target: &mut Self::Buffer,
    ) -> Outcome<()> {
        self.sim.launch(launch, inputs, target)
    }

    fn download(&self, buffer: &Self::Buffer) -> Outcome<Option<Vec<u64>>> {
        self.sim.download(buffer)
    }

    fn synchronize(&self) -> Outcome<()> {
        self.sim.synchronize()
    }

    fn now(&self) -> u64 {
        self.sim.now() + self.shared_ns.get()
    }

    fn look_at_memory(&self) -> Outcome<()> {
        self.sim.look_at_memory()
    }

    fn memory_peak(&self) -> u64 {
        self.sim.memory_peak()
    }

    fn reset_memory_peak(&self) {
        self.sim.reset_memory_peak();
    }

    fn calls(&self) -> Option<Counts> {
        self.sim.calls()
    }

    fn hazards(&self) -> Option<u64> {
        self.sim.hazards()
    }

    fn first_hazard(&self) -> Option<String> {
        self.sim.first_hazard()
    }

    fn close(self) -> Outcome<()> {
        self.sim.close()
    }
}

#[test]
fn a_stream_that_is_not_made_to_wait_is_found() {
    let ring = Ring::new(512, 5).expect("there are more");
    let inputs = Inputs::new(&ring, 2, 3);
    let expected = reference::results(&ring, &inputs);
    let run = |forget: bool| {
        let machine = Forgetful::new(true, forget, 0);
        let program = Program::new(machine, &ring, &inputs, Some(&expected));
        let mut program = program.expect("no error");
        let round = program.run(Watch::Nothing).expect("no error");
        let hazards = program.machine().hazards().expect("it looks for them");
        program.close().expect("no error");
        (round.wrong.expect("it was checked").count, hazards)
    };
    assert_eq!(run(false), (0, 0));
    assert!(run(true).1 > 0, "the device does not see what it is for");
}

#[test]
fn a_line_of_json_has_the_fields_that_scripts_read() {
    let options = Options { check: false, ..small() };
    let json = report::json(&options, &multiply(&options).expect("no error"));
    assert_eq!(json.lines().count(), 2);
    let fields = [
        "allocator",
        "memory_from",
        "backend",
        "clock",
        "n",
        "limbs",
        "streams",
        "layers",
        "batch",
        "rounds",
        "products",
        "limb_products",
        "wrong",
        "compared",
        "seconds",
        "products_per_s",
        "speed_over_last",
        "allocator_share",
        "allocations",
        "live_peak_bytes",
        "device_peak_bytes",
        "taken_over_live",
        "warm_device_peak_bytes",
        "warm_taken_over_live",
        "event_records",
        "stream_waits",
        "event_queries",
        "synchronizes",
        "memory_calls",
        "hazards",
    ];
    for line in json.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("an object");
        let names: Vec<&String> = object.as_object().expect("an object").keys().collect();
        assert_eq!(names, fields);
        assert!(object["wrong"].is_null(), "nothing was checked");
    }
}

#[test]
fn a_wrong_command_line_is_told() {
    let parse = |arguments: &[&str]| {
        let arguments = iter::once("ntt").chain(arguments.iter().copied());
        Options::parse(lexopt::Parser::from_iter(arguments))
    };
    let words = |arguments: &[&str]| parse(arguments).expect_err("wrong").to_string();
    for n in ["0", "8", "1000", "262144", "many"] {
        assert!(words(&["--n", n]).contains("a power of two from 16 to 131072"), "{n}");
    }
    assert!(words(&["--limbs", "0"]).contains("from 1 to 1000"));
    assert!(words(&["--streams", "1001"]).contains("from 1 to 1000"));
    assert!(words(&["--layers", "0"]).contains("at least 1"));
    assert!(words(&["--layers", "25"]).contains("need at least 26 limbs"));
    let large = ["--n", "131072", "--limbs", "1000", "--layers", "900"];
    assert!(words(&large).contains("GiB of the host's memory: at most 8"));
    assert!(words(&["--backend", "tpu"]).contains("this program runs on: sim"));
    assert!(words(&["--nonsense"]).contains("--nonsense"));
    assert!(parse(&["--help"]).expect("help is no error").is_none());
}
