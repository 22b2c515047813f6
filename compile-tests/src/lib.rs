//! Calls of cudarc's libraries with pooled memory: that this compiles is the test.
//!
//! ```console
//! $ cargo check -p streampool-cudarc-tests
//! ```

use std::error::Error;
use std::sync::Arc;

use cudarc::cublas::safe::Asum;
use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{AsumConfig, CudaBlas, Gemm, GemmConfig, Gemv, GemvConfig};
use cudarc::curand::CudaRng;
use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, ReduceOp};
use streampool::PoolStream;
use streampool::cuda::CudaBackend;

/// cuBLAS, on slices and on views.
///
/// # Errors
///
/// As cuBLAS and the pool say.
pub fn multiply(
    stream: &Arc<CudaStream>,
    home: &PoolStream<CudaBackend>,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let blas = CudaBlas::new(Arc::clone(stream))?;
    let (a, b) = (home.clone_htod(&[1.0f32; 6])?, home.clone_htod(&[2.0f32; 6])?);
    let mut c = home.alloc_zeros::<f32>(8)?;
    let config = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: 2,
        n: 2,
        k: 3,
        alpha: 1.0,
        lda: 2,
        ldb: 3,
        beta: 0.0,
        ldc: 2,
    };
    // SAFETY: sound because the matrices have the sizes that the configuration says.
    unsafe {
        blas.gemm(config, &a, &b, &mut c)?;
        blas.gemm(config, &a.slice(..), &b, &mut c.slice_mut(4..))?;
    }
    let config = GemvConfig {
        trans: CUBLAS_OP_N,
        m: 2,
        n: 3,
        alpha: 1.0,
        lda: 2,
        incx: 1,
        beta: 0.0,
        incy: 1,
    };
    let mut sum = 0.0;
    // SAFETY: sound because matrix and vectors have the sizes that the configurations say.
    unsafe {
        blas.gemv(config, &a, &b.slice(..3), &mut c.slice_mut(..2))?;
        blas.asum(AsumConfig { n: 8, incx: 1 }, &c, &mut sum)?;
    }
    Ok(stream.clone_dtoh(&c)?)
}

/// cuRAND, into a slice and into a view.
///
/// # Errors
///
/// As cuRAND and the pool say.
pub fn draw(
    stream: &Arc<CudaStream>,
    home: &PoolStream<CudaBackend>,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let random = CudaRng::new(7, Arc::clone(stream))?;
    let mut values = home.alloc_zeros::<f32>(64)?;
    random.fill_with_uniform(&mut values)?;
    random.fill_with_normal(&mut values.slice_mut(32..), 0.0, 1.0)?;
    Ok(values.to_vec()?)
}

/// NCCL, between slices and views.
///
/// # Errors
///
/// As the pool says.
///
/// # Panics
///
/// When NCCL fails.
pub fn exchange(comm: &Comm, home: &PoolStream<CudaBackend>) -> Result<(), streampool::Error> {
    let mut values = home.clone_htod(&[1.0f32; 16])?;
    let mut sum = home.alloc_zeros::<f32>(16)?;
    comm.all_reduce(&values, &mut sum, &ReduceOp::Sum).expect("an all-reduce");
    comm.all_reduce_in_place(&mut values, &ReduceOp::Max).expect("an all-reduce");
    comm.broadcast(Some(&values), &mut sum, 0).expect("a broadcast");
    comm.reduce_scatter(&values, &mut sum.slice_mut(..8), &ReduceOp::Sum).expect("a scatter");
    comm.send(&values.slice(8..), 1).expect("a send");
    comm.recv(&mut sum, 1).expect("a receive");
    Ok(())
}
