function y = onnx_real(y)
% Real numbers; NaN where a function left them.
if ~isreal(y)
    outside = imag(y) ~= 0;
    y = real(y);
    y(outside) = NaN;
end
end
