use undraft_cpu::{CpuBackend, Isa};
use undraft_testing::conformance::{plan, run_one};
#[test]
fn time() {
    for isa in [Isa::Avx2, Isa::Avx512, Isa::Scalar] {
        let Ok(b) = CpuBackend::with_isa(isa) else { continue };
        println!("{isa:?}");
        for (op, s, d) in plan() {
            let t = std::time::Instant::now();
            let r = run_one(&b, op, s, d);
            println!(
                "{:34} {:9} {:4} {:4} cases {:4} refused, {:.2e} of {:.1e} {:?} {:?}",
                op.name(),
                s.name(),
                d.name(),
                r.case_count,
                r.refused_count,
                r.worst_rel_rms,
                r.tolerance,
                t.elapsed(),
                r.passed
            );
        }
    }
}
