use pleach_sim::{
    run::{EngineOnly, Options, run},
    scenario::{Files, Scenario},
};
use std::{env, fs, io, path::Path};
fn main() {
    for path in env::args().skip(1) {
        let text = fs::read_to_string(&path).unwrap();
        let mut files = Files {
            scenario: Path::new(&path),
            traces: None,
            read: &mut |_: &Path| Err(io::ErrorKind::NotFound.into()),
        };
        let s = Scenario::parse(&text, &mut files).unwrap();
        let r = run(
            &s,
            &Options {
                program: &EngineOnly,
                skip_baselines: true,
                progress: &|_| {},
            },
        )
        .unwrap();
        print!(
            "{:30}",
            Path::new(&path).file_stem().unwrap().to_str().unwrap()
        );
        for f in &r.flows {
            if f.name.starts_with("bg") {
                continue;
            }
            print!(
                " {} {:.2} re {:?}",
                f.name,
                f.goodput_mbps,
                f.retransmits.unwrap_or(0)
            );
        }
        let f = &r.series.flows[0].goodput_mbps;
        let step = if env::var("STEP").is_ok() {
            env::var("STEP").unwrap().parse().unwrap()
        } else {
            100
        };
        print!(" |");
        for w in f.chunks(step) {
            print!(" {:.1}", w.iter().sum::<f64>() / w.len() as f64);
        }
        if env::var("W").is_ok() {
            for l in &r.series.links {
                print!("\n   {}:", l.name);
                for w in l.weight.chunks(step) {
                    print!(" {:.1}", w.iter().sum::<f64>() / w.len() as f64);
                }
                print!("\n   up:");
                for w in l.up_mbps.chunks(step) {
                    print!(" {:.1}", w.iter().sum::<f64>() / w.len() as f64);
                }
                print!("\n   q:");
                for w in l.queue_up_ms.chunks(step) {
                    print!(" {:.0}", w.iter().sum::<f64>() / w.len() as f64);
                }
            }
        }
        println!();
    }
}
