"""The language study: Llama against CEM at several recursion depths, on the same tokens in the same order.

A study is a preset (`presets`) and a corpus (`synthetic.corpora`). Each contender is trained (`training`), scored and
looked into (`probes`); `verdict` says whether all is as it must be. One seed of an untuned recipe at a small size
shows that these layers train, what they cost and whether their energies fall; it is no claim about quality.

On the CPU a run repeats bit for bit; on a GPU, where sums are taken in any order, it does not.
"""

from synthetic.language.command import add_arguments, run

__all__ = ["add_arguments", "run"]
