function y = onnx_times(a, b, type)
% Products of integers of a type, which wrap around; those of 64 bits must be exact.
if strcmp(type, 'int64') || strcmp(type, 'uint64')
    y = onnx_wrap(a .* b, type);
    return
end
low = mod(a, 65536);
high = onnx_wrap((a - low) / 65536 .* b, type);
y = onnx_wrap(high * 65536 + low .* b, type);
end
