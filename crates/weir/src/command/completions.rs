//! `weir completions`: what a shell completes, as the parser knows it.

use clap::{Command, ValueEnum};

use super::show::Topic;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Words to complete: verbs, topics and options as the parser knows them, files where files go.
pub fn script(shell: Shell, command: &Command) -> String {
    let verbs: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
    let topics: Vec<String> = Topic::value_variants()
        .iter()
        .filter_map(|t| Some(t.to_possible_value()?.get_name().to_owned()))
        .collect();
    let options = |verb: &str| -> Vec<String> {
        let of = command.find_subcommand(verb).into_iter().flat_map(|c| c.get_arguments());
        of.filter_map(|a| Some(format!("--{}", a.get_long()?))).collect()
    };
    let (words, topics) = (verbs.join(" "), topics.join(" "));
    match shell {
        Shell::Fish => {
            let mut out = format!("complete -c weir -n __fish_use_subcommand -f -a '{words}'\n");
            out += &format!("complete -c weir -n '__fish_seen_subcommand_from show' -f -a '{topics}'\n");
            for verb in &verbs {
                for option in options(verb) {
                    let option = option.trim_start_matches('-').to_owned();
                    out += &format!("complete -c weir -n '__fish_seen_subcommand_from {verb}' -l {option}\n");
                }
            }
            out
        }
        Shell::Bash | Shell::Zsh => {
            let mut cases = String::new();
            for verb in &verbs {
                let more = if *verb == "show" { topics.as_str() } else { "" };
                cases += &format!("    {verb}) words=\"{more} {}\" ;;\n", options(verb).join(" "));
            }
            let zsh = if shell == Shell::Zsh { "autoload -U +X bashcompinit && bashcompinit\n" } else { "" };
            format!(
                "{zsh}_weir() {{\n  local words=\"{words}\"\n  case \"${{COMP_WORDS[1]}}\" in\n{cases}  esac\n  \
                 [ \"$COMP_CWORD\" = 1 ] && words=\"{words}\"\n  \
                 COMPREPLY=($(compgen -W \"$words --socket --help\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}\n\
                 complete -o default -F _weir weir\n"
            )
        }
    }
}
