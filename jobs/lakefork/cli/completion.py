"""Shell completion of the lakefork command, derived from its parser."""

import argparse

BASH = """# lakefork completion bash: put `source <(lakefork completion bash)` into ~/.bashrc
_lakefork() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        *) case "${{COMP_WORDS[1]}}" in
{options}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _lakefork lakefork
"""

ZSH = """# lakefork completion zsh: put `source <(lakefork completion zsh)` into ~/.zshrc
autoload -U +X bashcompinit && bashcompinit
"""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    commands = _commands(parser)
    values = [
        f'        "{name} {option}") words="{" ".join(action.choices or ())}" ;;'
        for name, command in commands.items()
        for action in command._actions
        for option in action.option_strings
        if action.choices
    ]
    options = [f'            {name}) words="{" ".join(_words(command))}" ;;' for name, command in commands.items()]
    script = BASH.format(commands=" ".join(commands), values="\n".join(values), options="\n".join(options))
    return ZSH + script if shell == "zsh" else script


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(group.choices)


def _words(command: argparse.ArgumentParser) -> list[str]:
    """Returns the words that may follow a command: choices of its arguments, and options."""
    named = [option for action in command._actions for option in action.option_strings if option.startswith("--")]
    positional = [
        choice
        for action in command._actions
        if not action.option_strings
        for choice in [*(action.choices or ()), *getattr(action, "suggestions", ())]
    ]
    return [*positional, *named]
