function y = onnx_whole(x)
% Integers of 64 bits as doubles, which must be exact.
y = double(x);
if any(abs(y(:)) >= flintmax)
    error('onnx:range', 'an integer is too large to be exact');
end
end
