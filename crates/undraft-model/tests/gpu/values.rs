//! Logits near the CPU's.

use undraft_model::generate::{Engine, Outputs, Undecided};
use undraft_model::model::Logits;

use super::{cache, load};
use crate::runner::{self, Mode, NEXT, ODD, TRAINED, random_tokens};

/// Largest difference of a logit, and the largest logit.
fn difference(got: &[f32], want: &[f32]) -> (f32, f32) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let worst = got.iter().zip(want).map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() });
    (worst.fold(0.0, f32::max), largest)
}

#[test]
fn prefill_and_decode_are_near_the_cpu() {
    let cases = match crate::is_fast() {
        true => [(NEXT, 300), (ODD, 300), (TRAINED, 600)],
        false => [(NEXT, 40), (ODD, 40), (TRAINED, 12)],
    };
    for (path, len) in cases {
        let Some(gpu) = load(path) else { return };
        let cpu = runner::load(path);
        let tokens = random_tokens(&cpu, 5, len);
        let (prompt, rest) = tokens.split_at(len / 2);
        let mut cpu_cache = runner::cache(&cpu);
        let mut want = runner::run(&cpu, &mut cpu_cache, prompt, Mode::Prefill).logits;
        want.extend(runner::run(&cpu, &mut cpu_cache, rest, Mode::Decode).logits);

        let (mut gpu_cache, mut out) = (cache(&gpu, len, 4), gpu.new_outputs(true));
        let mut got = Vec::new();
        let mut each = |_, out: &_| {
            got.extend_from_slice(Outputs::logits(out));
            Ok(())
        };
        gpu.prefill(&mut gpu_cache, prompt, Logits::All, &mut out, &mut each).unwrap();
        for window in rest.chunks(3) {
            let path: Vec<usize> = (0..window.len()).collect();
            gpu.verify(&mut gpu_cache, window, &mut out).unwrap().commit_path(&path).unwrap();
            got.extend_from_slice(out.logits());
        }
        assert_eq!(gpu_cache.len(), len);
        let (worst, largest) = difference(&got, &want);
        println!("{path}: logits differ by {worst:e}, the largest is {largest}");
        assert!(worst < 5e-4, "{path}: {worst:e}");
    }
}
