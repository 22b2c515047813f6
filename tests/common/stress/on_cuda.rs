//! The programs on a real device.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use streampool::cuda::CudaBackend;

use super::Device;
use crate::card::Card;

impl Device for Card {
    type B = CudaBackend;

    fn backend(&self) -> CudaBackend {
        CudaBackend::new(&self.context).expect("the device answers")
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream")
    }

    fn busy(&self, stream: &Arc<CudaStream>, ns: u64) {
        Card::busy(self, stream, ns);
    }

    fn stamp(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64, ns: u64) {
        Card::stamp(self, stream, address, bytes, stamp, ns);
    }

    fn check(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64) {
        Card::check(self, stream, address, bytes, stamp);
    }

    fn mismatches(&self) -> u64 {
        Card::mismatches(self)
    }
}
