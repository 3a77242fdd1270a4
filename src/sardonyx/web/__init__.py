"""A web page that trains a model: static files with onnxruntime-web inside.

export.py    `export_web` writes the folder
rows.py      what the page is fed with: its inputs, its data, and how a user tries the model
offsets.py   where the bytes of each state tensor are in a model file, so that a page can put new
             ones there
webgpu.py    the step in the operators that WebGPU has
placement.py formulations whose nodes WebGPU takes
runtime.py   finds onnxruntime-web
page/        the page itself: HTML, style, the interface, and the Worker that trains
"""
