"""Models as MATLAB code, which MATLAB and GNU Octave run without any toolbox.

write.py     `to_matlab_source`: the folder with functions, weights and what they call
function.py  one function: names, statements, the rules of its nodes
elementwise.py layout.py layers.py controlflow.py signal.py text.py   rules, by kind of operator
forms.py     operators written by others: trees, linear models, n-grams
blocks.py    parts of a graph that are repeated: one function for all of them
names.py     identifiers that MATLAB takes and that hide none of its functions
mat_file.py  arrays as a MAT file of version 5
octave.py    the written folder in GNU Octave: the engine "octave"
library/     the functions that the generated code calls, in MATLAB

An array of ONNX has its axes in reverse order here, so that its bytes stay the same: axis k of r
is dimension r - k. Integers are doubles that hold whole numbers, because MATLAB's saturate.
Text is cell arrays of characters.
"""
