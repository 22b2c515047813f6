//! Models of the pool: what its threads do to each other's blocks.

use crate::models::{BLOCK, World, free, no_hazards, write};
use crate::sync::model::{check, spawn};

/// One thread frees on A while another misses on B, asks and steals. The block is ordered when it is
/// handed out, and handed out once.
#[test]
fn free_against_steal() {
    check("free against steal", || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        let block = world.used_block(&a);
        let freeing = {
            let device = world.device.clone();
            spawn(move || free(&device, block))
        };
        let stolen = b.alloc(BLOCK);
        if let Ok(block) = stolen {
            write(&world.device, &b, &block);
            free(&world.device, block);
        }
        freeing.join();
        no_hazards(&world.device);
        world.end([a, b]);
    });
}
