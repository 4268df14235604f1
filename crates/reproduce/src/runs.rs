//! Results of cells, in memory and below a directory.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use pleach_sim::results::{Results, World};

use crate::{
    evaluate::name,
    experiment::{Cell, Experiment, Kind},
};

/// Results of one world, by the cells' names.
#[derive(Clone, Debug, Default)]
pub struct Runs(BTreeMap<String, Arc<Results>>);

/// Results of both worlds.
#[derive(Clone, Debug, Default)]
pub struct Worlds {
    /// Results of the simulator with the seeds in the files.
    pub sim: Runs,
    /// Results of the lab (namespaces) with the seeds in the files.
    pub lab: Runs,
    /// Results of the simulator with other seeds.
    pub more_sim: Vec<Runs>,
    /// Results of the lab with other seeds.
    pub more_lab: Vec<Runs>,
}

impl Runs {
    /// Returns the results of `cell`. `None` if it did not run, or its run was refused.
    #[must_use]
    pub fn get(&self, cell: &str) -> Option<&Results> {
        let results = self.0.get(cell)?.as_ref();
        results.refused.is_none().then_some(results)
    }

    /// Returns the world of the results. `None` if there are no results.
    #[must_use]
    pub fn world(&self) -> Option<World> {
        self.0.values().next().map(|results| results.world)
    }

    /// Returns the names of the cells whose runs were refused, with the reasons.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &str)> {
        let runs = self.0.iter();
        runs.filter_map(|(name, results)| Some((name.as_str(), results.refused.as_deref()?)))
    }

    /// Adds the results of `cell`, or replaces them.
    pub fn insert(&mut self, cell: &str, results: Results) {
        self.0.insert(cell.to_owned(), Arc::new(results));
    }

    /// Returns results in which, for each pair of names, the first name has the results of the cell with the second
    /// name.
    pub(crate) fn standing_in(&self, pairs: &[(String, String)]) -> Self {
        let found = pairs.iter().filter_map(|(name, from)| {
            let results = self.0.get(from)?;
            Some((name.clone(), Arc::clone(results)))
        });
        Self(found.collect())
    }
}

impl Worlds {
    /// Returns the results in `world` with the seeds in the files.
    #[must_use]
    pub fn of(&self, world: World) -> &Runs {
        match world {
            World::Lab => &self.lab,
            World::Sim => &self.sim,
        }
    }

    /// Returns the results in `world`, one element for each seed.
    pub fn seeds(&self, world: World) -> impl Iterator<Item = &Runs> {
        let (first, more) = match world {
            World::Lab => (&self.lab, &self.more_lab),
            World::Sim => (&self.sim, &self.more_sim),
        };
        core::iter::once(first).chain(more)
    }

    /// Returns the results of repetition `more` ([`Cell::seeded`]) in `world`.
    fn of_seed(&mut self, world: World, more: u64) -> &mut Runs {
        let (first, others) = match world {
            World::Lab => (&mut self.lab, &mut self.more_lab),
            World::Sim => (&mut self.sim, &mut self.more_sim),
        };
        let Some(index) = usize::try_from(more).unwrap_or(0).checked_sub(1) else {
            return first;
        };
        if others.len() <= index {
            others.resize_with(index + 1, Runs::default);
        }
        &mut others[index]
    }
}

/// Directory with scenarios and results.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    program: String,
}

impl Directory {
    /// Opens the directory at `path` and creates it if necessary. `program` is the build that measures; it is stored in
    /// [`Results::version`]. Results of another build do not count.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn new(path: &Path, program: &str) -> anyhow::Result<Self> {
        let this = Self {
            path: path.to_owned(),
            program: program.to_owned(),
        };
        for dir in [
            "scenarios/lab",
            "transfers",
            "workloads",
            "runs/sim",
            "runs/lab",
        ] {
            let dir = path.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(this)
    }

    /// Writes the file of `cell`. If the file had another text, the results of `cell` are removed.
    ///
    /// # Errors
    /// Fails if a file cannot be written or removed.
    pub fn write_scenario(&self, cell: &Cell) -> anyhow::Result<PathBuf> {
        let path = self.scenario(cell);
        if !self.has_scenario(cell) {
            for world in [World::Lab, World::Sim] {
                for more in 0..SEEDS_MAX {
                    let run = self.run(cell, world, more);
                    if cell.runs_in(world) && run.exists() {
                        fs::remove_file(&run)
                            .with_context(|| format!("cannot remove {}", run.display()))?;
                    }
                }
            }
            write(&path, &cell.toml)?;
        }
        Ok(path)
    }

    /// Writes the results of repetition `more` ([`Cell::seeded`]) of `cell`. The status reports of the daemons are
    /// omitted, because they would be most of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_run(
        &self,
        cell: &Cell,
        world: World,
        more: u64,
        results: &Results,
    ) -> anyhow::Result<()> {
        let results = Results {
            status: Vec::new(),
            version: self.program.clone(),
            ..results.clone()
        };
        let path = self.run(cell, world, more);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make {}", parent.display()))?;
        }
        write(&path, &results.to_json()?)
    }

    /// Reads the results of `experiments`. Runs of another build of the program are marked as refused.
    ///
    /// # Errors
    /// Fails if a file with results cannot be read or parsed.
    pub fn read(&self, experiments: &[Experiment]) -> anyhow::Result<Worlds> {
        let mut worlds = Worlds::default();
        let cells = experiments.iter().flat_map(|experiment| &experiment.cells);
        for cell in cells.filter(|cell| self.has_scenario(cell)) {
            for world in [World::Lab, World::Sim] {
                for more in 0..SEEDS_MAX {
                    if cell.runs_in(world) && self.run(cell, world, more).exists() {
                        let results = self.read_run(cell, world, more)?;
                        worlds.of_seed(world, more).insert(&cell.name, results);
                    }
                }
            }
        }
        Ok(worlds)
    }

    /// Writes `text` as the file `name`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        write(&self.path.join(name), text)
    }

    /// Returns the directory for the logs and configurations of a lab run of `cell`.
    #[must_use]
    pub fn work(&self, cell: &Cell) -> PathBuf {
        self.path.join("work").join(&cell.name)
    }

    /// Whether this build has run repetition `more` ([`Cell::seeded`]) of `cell` in `world`, with the present text of
    /// the file, and the run was not refused.
    ///
    /// # Errors
    /// Fails if the file with the results cannot be read or parsed.
    pub fn has_run(&self, cell: &Cell, world: World, more: u64) -> anyhow::Result<bool> {
        if !self.has_scenario(cell) || !self.run(cell, world, more).exists() {
            return Ok(false);
        }
        Ok(self.read_run(cell, world, more)?.refused.is_none())
    }

    fn read_run(&self, cell: &Cell, world: World, more: u64) -> anyhow::Result<Results> {
        let path = self.run(cell, world, more);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut results = Results::from_json(&text)
            .with_context(|| format!("{} holds no results", path.display()))?;
        if results.version != self.program {
            let other = &results.version;
            results.refused = Some(format!(
                "another build of the program ran it, {other}; remedy: run it again, as with --missing"
            ));
        }
        Ok(results)
    }

    fn has_scenario(&self, cell: &Cell) -> bool {
        fs::read_to_string(self.scenario(cell)).is_ok_and(|text| text == cell.toml)
    }

    fn scenario(&self, cell: &Cell) -> PathBuf {
        let folder = match cell.kind {
            Kind::Played => "scenarios/lab",
            Kind::Scenario | Kind::Simulated => "scenarios",
            Kind::Transfer(_) => "transfers",
            Kind::Correction(_) | Kind::Modelled(_) | Kind::Workload(_) => "workloads",
        };
        self.path.join(folder).join(format!("{}.toml", cell.name))
    }

    fn run(&self, cell: &Cell, world: World, more: u64) -> PathBuf {
        let file = format!("{}.json", cell.name);
        let mut path = self.path.join("runs").join(name(world));
        if more > 0 {
            path.push(format!("seed+{more}"));
        }
        path.join(file)
    }
}

/// Maximum number of seeds with which a cell runs.
pub const SEEDS_MAX: u64 = 32;

/// Writes a file atomically, so that the file is never incomplete.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
