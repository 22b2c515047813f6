//! Programs whose allocations are made up, as traces. Each is the same at every run.

use super::replay::trace::Trace;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Numbers by SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// As many of each order of size.
    fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }
}

/// A live allocation.
struct Block {
    name: u64,
    bytes: u64,
    stream: usize,
}

/// A trace that is being made up.
#[derive(Default)]
struct Recorder {
    text: String,
    names: u64,
}

impl Recorder {
    fn allocate(&mut self, bytes: f64, stream: usize) -> Block {
        self.names += 1;
        let block = Block { name: self.names, bytes: bytes.max(1.0) as u64, stream };
        self.line("allocate", &block);
        block
    }

    fn free(&mut self, block: Block) {
        self.line("free", &block);
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn line(&mut self, action: &str, block: &Block) {
        let Block { name, bytes, stream } = block;
        self.text += &format!("0,{action},{name:x},{bytes},{stream}\n");
    }

    fn finish(self, name: &str) -> Trace {
        let text = format!("t_us,action,ptr,bytes,stream\n{}", self.text);
        Trace::parse(name, name, text.as_bytes()).expect("a good trace")
    }
}

/// Requests on four streams, each with a prompt of its own length and pages of keys and values, of one
/// size, that come as its answer grows.
pub(crate) fn inference_server() -> Trace {
    struct Request {
        stream: usize,
        tokens: usize,
        end: usize,
        pages: Vec<Block>,
    }
    const PAGE_TOKENS: usize = 16;
    const PAGE: f64 = 1.25 * MIB;
    const HIDDEN: f64 = 2.0 * 4096.0;
    let (mut draw, mut recorder) = (Draw(1), Recorder::default());
    let weights: Vec<_> = (0..128).map(|_| recorder.allocate(4.5 * MIB, 0)).collect();
    let mut requests: Vec<Request> = Vec::new();
    let mut arrived = 0;
    while arrived < 150 || !requests.is_empty() {
        if arrived < 150 && requests.len() < 24 && draw.below(3) == 0 {
            let prompt = draw.log_uniform(32.0, 2048.0) as usize;
            let end = prompt + 16 + draw.below(300);
            requests.push(Request { stream: arrived % 4, tokens: prompt, end, pages: Vec::new() });
            arrived += 1;
            // The prompt, layer by layer: what a layer leaves is freed when the next one has read it.
            let request = requests.last_mut().expect("it was just pushed");
            let width = request.tokens as f64 * HIDDEN;
            let mut before = recorder.allocate(width, request.stream);
            for _ in 0..8 {
                let attention = recorder.allocate(3.0 * width, request.stream);
                let wide = recorder.allocate(4.0 * width, request.stream);
                recorder.free(attention);
                let after = recorder.allocate(width, request.stream);
                recorder.free_all([wide, before]);
                before = after;
            }
            recorder.free(before);
        }
        for request in &mut requests {
            while request.pages.len() * PAGE_TOKENS < request.tokens {
                request.pages.push(recorder.allocate(PAGE, request.stream));
            }
            let scores = recorder.allocate(request.tokens as f64 * 64.0, request.stream);
            let logits = recorder.allocate(250.0 * KIB, request.stream);
            recorder.free_all([scores, logits]);
            request.tokens += 4;
        }
        let (over, more) = requests.into_iter().partition(|own| own.tokens >= own.end);
        requests = more;
        let over: Vec<Request> = over;
        over.into_iter().for_each(|request| recorder.free_all(request.pages));
    }
    recorder.free_all(weights);
    recorder.finish("inference_server")
}

/// Random sizes with a heavy tail, on three streams, freed in random order.
pub(crate) fn graph_network() -> Trace {
    let (mut draw, mut recorder) = (Draw(2), Recorder::default());
    let mut live: Vec<Block> = Vec::new();
    for step in 0..12_000 {
        // The number of buffers swings, as from one batch of graphs to the next.
        let aim = 150 + (step / 1500 % 3) * 120;
        if live.is_empty() || draw.below(2 * aim) >= live.len() {
            let bytes = (16.0 * KIB * draw.unit().max(1e-9).powf(-1.1)).min(256.0 * MIB);
            live.push(recorder.allocate(bytes, draw.below(3)));
        } else {
            let index = draw.below(live.len());
            recorder.free(live.swap_remove(index));
        }
    }
    recorder.free_all(live);
    recorder.finish("graph_network")
}

/// Training steps whose batch grows, with sequences of another length in each: activations go up through
/// the layers and down again, gradients are summed on a second stream.
pub(crate) fn growing_batch() -> Trace {
    const LAYERS: usize = 16;
    let (mut draw, mut recorder) = (Draw(3), Recorder::default());
    let weights: Vec<_> =
        (0..LAYERS * 3).map(|index| recorder.allocate((3 + index % 3) as f64 * MIB, 0)).collect();
    for step in 0..60 {
        let tokens = (4 + step / 10 * 4) as f64 * (128 + draw.below(384)) as f64;
        let mut kept: Vec<[Block; 3]> = Vec::new();
        for _ in 0..LAYERS {
            let scratch = recorder.allocate(tokens * 3000.0, 0);
            kept.push([2048.0, 2500.0, 60.0].map(|width| recorder.allocate(tokens * width, 0)));
            recorder.free(scratch);
        }
        let loss = recorder.allocate(tokens * 8192.0, 0);
        let mut sums = Vec::new();
        while let Some(layer) = kept.pop() {
            let scratch = recorder.allocate(tokens * 2500.0, 0);
            sums.push(recorder.allocate(12.0 * MIB, 1));
            recorder.free_all(layer);
            recorder.free(scratch);
            if sums.len() == 4 {
                recorder.free_all(sums.drain(..));
            }
        }
        recorder.free(loss);
    }
    recorder.free_all(weights);
    recorder.finish("growing_batch")
}

/// Phases of very many small buffers and of few large ones, in turn, on two streams. Of each phase some
/// buffers stay, scattered, until the next one of its kind.
pub(crate) fn alternating_phases() -> Trace {
    let (mut draw, mut recorder) = (Draw(4), Recorder::default());
    let mut stay: [Vec<Block>; 2] = Default::default();
    for phase in 0..12 {
        let small = phase % 2 == 0;
        let mut total = 0.0;
        let mut own = Vec::new();
        while total < 900.0 * MIB {
            let bytes = match small {
                true => draw.log_uniform(16.0 * KIB, 2.0 * MIB),
                false => draw.log_uniform(24.0 * MIB, 220.0 * MIB),
            };
            own.push(recorder.allocate(bytes, draw.below(2)));
            total += bytes;
            if draw.below(3) == 0 {
                let index = draw.below(own.len());
                let block = own.swap_remove(index);
                total -= block.bytes as f64;
                recorder.free(block);
            }
        }
        recorder.free_all(stay[phase % 2].drain(..));
        let share = if small { 40 } else { 8 };
        let (left, gone): (Vec<_>, Vec<_>) =
            own.into_iter().enumerate().partition(|(index, _)| index % share == share - 1);
        recorder.free_all(gone.into_iter().map(|(_, block)| block));
        stay[phase % 2] = left.into_iter().map(|(_, block)| block).collect();
    }
    stay.into_iter().for_each(|blocks| recorder.free_all(blocks));
    recorder.finish("alternating_phases")
}
