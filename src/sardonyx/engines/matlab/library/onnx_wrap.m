function y = onnx_wrap(x, type)
% Whole numbers as integers of a type, which wrap around; those of 64 bits must be exact.
bits = sscanf(type, 'int%d');
if isempty(bits)
    bits = sscanf(type, 'uint%d');
    low = 0;
else
    low = -2 ^ (bits - 1);
end
if any(abs(x(:)) >= flintmax)
    error('onnx:range', 'an integer is too large to be exact');
end
y = x;
if bits < 53
    y = mod(x - low, 2 ^ bits) + low;
end
end
